"""Archive: what is sealed is written to a slower tier early, so that memory can be cleared at once
and a lost node loses nothing.

Reacts to ReplicaReady in DRAM, the first complete one of its artifact: its node is asked for a
replica on its disk, or in the store that all nodes share.

Only kinds of artifacts in `kinds`, of at least `bytes_min`; never twice, and not in a store to
which the node has no access.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from tensorcast.controlplane.core.policies.base import Configured, Parameters
from tensorcast.controlplane.core.view import (
    accepts,
    has_store,
    is_stored,
    replicas_of,
    sealed,
)
from tensorcast.schema.aggregates.replica import ReplicaStatus
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.commands import Command, RequestReplicas
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.events import ReplicaReady
from tensorcast.schema.ids import ArtifactId, Tier


class ArchiveParameters(Parameters, frozen=True, kw_only=True):
    """`tier` is where copies are written to: disk or object."""

    tier: Tier = Tier.DISK
    kinds: tuple[str, ...] = ("weights", "adapter", "checkpoint")
    bytes_min: Annotated[int, Meta(ge=0)] = 0


class Archive(Configured[ArchiveParameters]):
    """Writes what is new to disk or to the store early, before memory must be cleared for it."""

    name = "archive"
    Parameters = ArchiveParameters

    def react(self, view: ClusterView, recorded: Recorded) -> tuple[Command, ...]:
        event = recorded.event
        if not isinstance(event, ReplicaReady) or event.tier is not Tier.DRAM:
            return ()
        if not self._wants(view, event) or not accepts(view, event.node):
            return ()
        tier = self.parameters.tier
        if tier is Tier.DRAM or (tier is Tier.OBJECT and not has_store(view, event.node)):
            return ()
        return (RequestReplicas(artifact=event.artifact, nodes=(event.node,), tier=tier),)

    def _wants(self, view: ClusterView, event: ReplicaReady) -> bool:
        found = sealed(view, event.artifact)
        return (
            found is not None
            and found.kind in self.parameters.kinds
            and found.manifest.size_bytes >= self.parameters.bytes_min
            and not any(tier is self.parameters.tier for _, tier in found.requests)
            and not _is_safe(view, event.artifact, self.parameters.tier)
        )


def _is_safe(view: ClusterView, artifact: ArtifactId, tier: Tier) -> bool:
    return is_stored(view, artifact) or any(
        one.tier is tier and one.status is ReplicaStatus.READY
        for one in replicas_of(view, artifact)
    )
