from __future__ import annotations

from functools import reduce

import msgspec
import pytest

from samples import artifact_id, manifest, record, record_all
from tensorcast.schema.cluster import ClusterView, decide, park, place, project, release
from tensorcast.schema.commands import PinArtifact
from tensorcast.schema.errors import Rejected
from tensorcast.schema.events import ArtifactPinned, ArtifactSealed, ArtifactUnpinned, SignalEmitted
from tensorcast.schema.ids import Seq
from tensorcast.schema.parking import (
    NO_EVENT,
    REASON_CHARS_MAX,
    Parked,
    explain,
    is_blocked,
    park_one,
    split_id,
    subject_id,
)

A, B = artifact_id("a"), artifact_id("b")


def sealed(artifact: str) -> ArtifactSealed:
    return ArtifactSealed(artifact=artifact, kind="weights", manifest=manifest())


def test_what_comes_after_a_parked_event_waits_and_all_else_goes_on():
    log = record_all(
        [sealed(A), ArtifactUnpinned(artifact=A), sealed(B), ArtifactPinned(artifact=B)]
    )
    view = reduce(project, [log[0]], ClusterView())
    view = park(view, Seq(2), f"artifact/{A}", NO_EVENT)
    view = reduce(project, [*log[2:], record(ArtifactPinned(artifact=A), 5)], view)
    assert not view.artifacts[A].pinned
    assert view.artifacts[B].pinned
    assert dict(view.parked) == {
        f"artifact/{A}": Parked(
            id=f"artifact/{A}", version=Seq(5), first=Seq(2), events=2, reason=NO_EVENT
        )
    }
    assert (view.at, view.skipped) == (5, 2)


def test_an_event_that_cannot_follow_parks_its_thing():
    view = project(ClusterView(), record(ArtifactPinned(artifact=A)))
    view = project(view, record(sealed(A), 2))
    assert not view.artifacts
    [held] = view.parked.values()
    assert (held.first, held.version, held.events) == (1, 2, 2)
    assert "cannot follow" in held.reason


def test_no_command_is_decided_on_what_stands_still():
    view = project(ClusterView(), record(ArtifactPinned(artifact=A)))
    with pytest.raises(Rejected, match="stands still: its event 1 cannot be taken") as refused:
        decide(view, PinArtifact(artifact=A))
    assert "tcctl audit dead" in refused.value.hint
    view = project(view, record(sealed(B), 2))
    assert decide(view, PinArtifact(artifact=B))[0] == (ArtifactPinned(artifact=B),)


def test_what_is_released_is_as_if_it_had_never_been_parked():
    log = record_all([sealed(A), ArtifactPinned(artifact=A), sealed(B)])
    whole = reduce(project, log, ClusterView())
    view = reduce(project, log[:1], ClusterView())
    view = park(view, Seq(2), f"artifact/{A}", "why")
    view = project(view, log[2])
    assert release(view, f"artifact/{A}", whole.artifacts[A]) == whole
    assert release(whole, f"artifact/{A}", None) is whole
    nothing = release(view, f"artifact/{A}", None)
    assert nothing.artifacts == view.artifacts
    assert place(nothing, whole.artifacts[A]) == whole


def test_signals_never_wait_for_each_other():
    emitted = SignalEmitted(topic="a.b", data={})
    view = park(ClusterView(), Seq(1), "signal/a.b", NO_EVENT)
    assert not is_blocked(view.parked, "signal", "a.b")
    assert project(view, record(emitted, 2)).signals["a.b"].emitted == 1


def test_the_subject_tells_what_bytes_do_not():
    assert subject_id("tc.c.log.node.n%2E1") == "node/n.1"
    assert subject_id("tc.c.log.nonsense.x") == "unknown/tc.c.log.nonsense.x"
    assert split_id("key/a/b") == ("key", "a/b")


def test_reasons_are_short_and_fit_anywhere():
    held = park_one({}, "key/k", Seq(3), "a\0" * REASON_CHARS_MAX)
    assert len(held.reason) == REASON_CHARS_MAX
    assert "\0" not in held.reason
    assert explain(Rejected("No.")) == "No."
    assert explain(KeyError("k")) == "KeyError: 'k'"
    assert msgspec.json.decode(msgspec.json.encode(held), type=Parked) == held
