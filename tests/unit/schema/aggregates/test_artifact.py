from typing import get_args

import msgspec
import pytest

from laws import check_law
from samples import BEGIN, MIB, N1, N2, artifact_id, manifest, record, record_all
from tensorcast.schema.aggregates.artifact import (
    LABELS_MAX,
    TRANSITIONS,
    ArtifactStatus,
    decide,
    evolve,
)
from tensorcast.schema.commands import (
    PinArtifact,
    RemoveArtifact,
    RequestReplicas,
    RequestVerification,
    SealArtifact,
    UnpinArtifact,
)
from tensorcast.schema.errors import Corrupt, InvalidArgument, NotFound, Rejected
from tensorcast.schema.events import (
    ArtifactEvent,
    ArtifactPinned,
    ArtifactRemoved,
    ArtifactSealed,
    ArtifactUnpinned,
    ReplicasRequested,
    VerificationRequested,
)
from tensorcast.schema.ids import Tier

A = artifact_id("a")
SEAL = SealArtifact(artifact=A, kind="weights", manifest=manifest(2), labels={"step": "1"})
SEALED = ArtifactSealed(artifact=A, kind="weights", manifest=manifest(2), labels={"step": "1"})
PINNED = ArtifactPinned(artifact=A)
UNPINNED = ArtifactUnpinned(artifact=A)
REQUESTED = ReplicasRequested(artifact=A, nodes=(N1, N2), tier=Tier.DRAM)
VERIFY = VerificationRequested(artifact=A, replicas=("r1",))
REMOVED = ArtifactRemoved(artifact=A)

PIN, UNPIN, REMOVE = PinArtifact(artifact=A), UnpinArtifact(artifact=A), RemoveArtifact(artifact=A)
REQUEST = RequestReplicas(artifact=A, nodes=(N1, N2, N1))
CHECK = RequestVerification(artifact=A, replicas=("r1",))


def fold(*events):
    state = None
    for recorded in record_all(events):
        state = evolve(state, recorded, recorded.event)
    return state


@pytest.mark.parametrize(
    ("history", "command", "events"),
    [
        ((), SEAL, (SEALED,)),
        ((SEALED,), SEAL, ()),
        ((SEALED, REMOVED), SEAL, (SEALED,)),
        ((SEALED,), PIN, (PINNED,)),
        ((SEALED, PINNED), PIN, ()),
        ((SEALED, PINNED), UNPIN, (UNPINNED,)),
        ((SEALED,), UNPIN, ()),
        ((SEALED,), REQUEST, (REQUESTED,)),
        ((SEALED, REQUESTED), REQUEST, (REQUESTED,)),
        ((SEALED,), CHECK, (VERIFY,)),
        ((SEALED,), REMOVE, (REMOVED,)),
        ((SEALED, REMOVED), REMOVE, ()),
        ((SEALED, PINNED, UNPINNED), REMOVE, (REMOVED,)),
    ],
)
def test_decisions(history, command, events):
    assert decide(fold(*history), command) == events


@pytest.mark.parametrize(
    ("history", "command", "error", "why"),
    [
        *(((), c, NotFound, "no artifact") for c in (PIN, UNPIN, REQUEST, CHECK, REMOVE)),
        *(((SEALED, REMOVED), c, NotFound, "no artifact") for c in (PIN, UNPIN, REQUEST, CHECK)),
        ((SEALED, PINNED), REMOVE, Rejected, "is pinned"),
        ((SEALED,), msgspec.structs.replace(REQUEST, nodes=()), InvalidArgument, "No node"),
    ],
)
def test_refusals(history, command, error, why):
    with pytest.raises(error, match=why):
        decide(fold(*history), command)


@pytest.mark.parametrize(
    ("change", "error", "why"),
    [
        ({"kind": "frog"}, InvalidArgument, "not a kind"),
        ({"labels": {str(i): "" for i in range(LABELS_MAX + 1)}}, InvalidArgument, "labels"),
        (
            {"manifest": msgspec.structs.replace(manifest(2), digests=b"")},
            Corrupt,
            "digest",
        ),
        (
            {"manifest": msgspec.structs.replace(manifest(2), size_bytes=MIB)},
            InvalidArgument,
            "beyond",
        ),
    ],
)
def test_content_that_cannot_be_sealed(change, error, why):
    with pytest.raises(error, match=why):
        decide(None, msgspec.structs.replace(SEAL, **change))


def test_what_the_events_leave():
    state = fold(SEALED, PINNED, REQUESTED, REQUESTED, VERIFY)
    assert (state.id, state.kind, state.labels) == (A, "weights", {"step": "1"})
    assert state.manifest == manifest(2)
    assert state.pinned
    assert state.requests == ((N1, Tier.DRAM), (N2, Tier.DRAM))
    assert state.version == 5
    assert state.sealed_at == record(SEALED, 1).at > BEGIN


def test_removal_forgets_what_was_asked_for():
    assert fold(SEALED, REQUESTED, REMOVED).requests == ()


def test_content_sealed_anew_starts_anew():
    state = fold(SEALED, PINNED, UNPINNED, REQUESTED, REMOVED, SEALED)
    assert (state.status, state.pinned, state.requests) == (ArtifactStatus.SEALED, False, ())


STATES = {None: (), ArtifactStatus.SEALED: (SEALED,), ArtifactStatus.REMOVED: (SEALED, REMOVED)}
EVENTS = [SEALED, PINNED, UNPINNED, REQUESTED, VERIFY, REMOVED]


@pytest.mark.parametrize("status", STATES)
@pytest.mark.parametrize("event", EVENTS)
def test_the_table_is_the_law(status, event):
    check_law(evolve, fold(*STATES[status]), event, TRANSITIONS.get((status, type(event))))


def test_the_list_above_holds_every_event():
    assert {type(event) for event in EVENTS} == set(get_args(ArtifactEvent))
