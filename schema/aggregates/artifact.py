"""An artifact: sealed content with an id that never changes, pins, and the replicas asked for."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import assert_never

import msgspec

from tensorcast.schema.aggregates.machine import next_status
from tensorcast.schema.commands import (
    ArtifactCommand,
    PinArtifact,
    RemoveArtifact,
    RequestReplicas,
    RequestVerification,
    SealArtifact,
    UnpinArtifact,
)
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.errors import InvalidArgument, NotFound, Rejected
from tensorcast.schema.events import (
    ArtifactEvent,
    ArtifactPinned,
    ArtifactRemoved,
    ArtifactSealed,
    ArtifactUnpinned,
    Event,
    ReplicasRequested,
    VerificationRequested,
)
from tensorcast.schema.ids import ArtifactId, NodeId, Seq, Tier
from tensorcast.schema.namespaces import Namespace
from tensorcast.schema.tensors import Manifest, check_manifest

KINDS = ("weights", "adapter", "kv", "checkpoint", "generic")
LABELS_MAX = 64


class ArtifactStatus(StrEnum):
    SEALED = "sealed"
    REMOVED = "removed"


TRANSITIONS: Mapping[tuple[ArtifactStatus | None, type[Event]], ArtifactStatus] = {
    (None, ArtifactSealed): ArtifactStatus.SEALED,
    (ArtifactStatus.SEALED, ArtifactPinned): ArtifactStatus.SEALED,
    (ArtifactStatus.SEALED, ArtifactUnpinned): ArtifactStatus.SEALED,
    (ArtifactStatus.SEALED, ReplicasRequested): ArtifactStatus.SEALED,
    (ArtifactStatus.SEALED, VerificationRequested): ArtifactStatus.SEALED,
    (ArtifactStatus.SEALED, ArtifactRemoved): ArtifactStatus.REMOVED,
    (ArtifactStatus.REMOVED, ArtifactSealed): ArtifactStatus.SEALED,
}


class Artifact(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`requests` are the replicas that somebody asked for: (node, tier), in order."""

    id: ArtifactId
    status: ArtifactStatus
    kind: str
    manifest: Manifest
    labels: dict[str, str]
    sealed_at: datetime
    pinned: bool = False
    requests: tuple[tuple[NodeId, Tier], ...] = ()
    namespace: Namespace = Namespace("")
    version: Seq = Seq(0)


def decide(state: Artifact | None, command: ArtifactCommand) -> tuple[ArtifactEvent, ...]:
    """The events that the command leads to. Raises NotFound, Rejected or InvalidArgument."""
    if isinstance(command, SealArtifact):
        return _seal(state, command)
    if state is None or (
        state.status is ArtifactStatus.REMOVED and not isinstance(command, RemoveArtifact)
    ):
        raise NotFound(
            f"There is no artifact {command.artifact}.",
            hint="`tcctl artifact ls` shows what there is.",
            artifact=command.artifact,
        )
    match command:
        case PinArtifact():
            return () if state.pinned else (ArtifactPinned(artifact=state.id),)
        case UnpinArtifact():
            return (ArtifactUnpinned(artifact=state.id),) if state.pinned else ()
        case RequestReplicas():
            return _request(state, command)
        case RequestVerification():
            return (VerificationRequested(artifact=state.id, replicas=command.replicas),)
        case RemoveArtifact():
            return _remove(state)
        case _:
            assert_never(command)


def _seal(state: Artifact | None, command: SealArtifact) -> tuple[ArtifactEvent, ...]:
    if state is not None and state.status is ArtifactStatus.SEALED:
        return ()
    if command.kind not in KINDS:
        raise InvalidArgument(
            f"{command.kind!r} is not a kind of artifact.", hint=f"Use one of {', '.join(KINDS)}."
        )
    if len(command.labels) > LABELS_MAX:
        raise InvalidArgument(f"An artifact has at most {LABELS_MAX} labels.")
    check_manifest(command.manifest)
    return (
        ArtifactSealed(
            artifact=command.artifact,
            kind=command.kind,
            manifest=command.manifest,
            labels=command.labels,
            namespace=command.namespace,
        ),
    )


def _request(state: Artifact, command: RequestReplicas) -> tuple[ArtifactEvent, ...]:
    if not command.nodes:
        raise InvalidArgument("No node is named.", hint="Name one or more nodes, or 'all'.")
    nodes = tuple(dict.fromkeys(command.nodes))
    return (ReplicasRequested(artifact=state.id, nodes=nodes, tier=command.tier),)


def _remove(state: Artifact) -> tuple[ArtifactEvent, ...]:
    if state.status is ArtifactStatus.REMOVED:
        return ()
    if state.pinned:
        raise Rejected(
            f"Artifact {state.id} is pinned.",
            hint="Run `tcctl artifact unpin` first.",
            artifact=state.id,
        )
    return (ArtifactRemoved(artifact=state.id),)


def evolve(state: Artifact | None, recorded: Recorded, event: ArtifactEvent) -> Artifact:
    """The state after `event`. Raises Rejected when the event cannot follow."""
    status = next_status(
        TRANSITIONS, state.status if state else None, event, f"artifact {event.artifact}"
    )
    if isinstance(event, ArtifactSealed):
        return Artifact(
            id=event.artifact,
            status=status,
            kind=event.kind,
            manifest=event.manifest,
            labels=event.labels,
            namespace=event.namespace,
            sealed_at=recorded.at,
            version=recorded.seq,
        )
    assert state is not None
    match event:
        case ArtifactPinned():
            change: dict[str, object] = {"pinned": True}
        case ArtifactUnpinned():
            change = {"pinned": False}
        case ReplicasRequested():
            wanted = (*state.requests, *((node, event.tier) for node in event.nodes))
            change = {"requests": tuple(dict.fromkeys(wanted))}
        case VerificationRequested():
            change = {}
        case ArtifactRemoved():
            change = {"requests": ()}
        case _:
            assert_never(event)
    return msgspec.structs.replace(state, status=status, version=recorded.seq, **change)
