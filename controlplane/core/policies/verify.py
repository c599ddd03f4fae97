"""Verify: bytes that somebody doubts get checked.

Reacts to VerificationRequested: one operation for each complete replica on a node that is up.
Never checks a replica that is still filling (each chunk of it is checked as it arrives), nor one
that is being checked already.
"""

from __future__ import annotations

from collections.abc import Iterator

from tensorcast.controlplane.core.policies.base import Task, issue
from tensorcast.controlplane.core.view import is_up, pending_operations
from tensorcast.schema.aggregates.replica import Replica, ReplicaStatus
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.commands import Command
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.events import VerificationRequested
from tensorcast.schema.work import Verify


class VerifyReplicas:
    """One operation for each replica that shall be checked."""

    name = "verify"

    def react(self, view: ClusterView, recorded: Recorded) -> tuple[Command, ...]:
        if not isinstance(recorded.event, VerificationRequested):
            return ()
        return issue(self.name, recorded.id, tuple(_checks(view, recorded.event)))


def _checks(view: ClusterView, event: VerificationRequested) -> Iterator[Task]:
    for name in dict.fromkeys(event.replicas):
        replica = view.replicas.get(name)
        if (
            replica is not None
            and replica.artifact == event.artifact
            and replica.status is ReplicaStatus.READY
            and is_up(view, replica.node)
            and not _is_checked(view, replica)
        ):
            yield replica.node, Verify(artifact=replica.artifact, tier=replica.tier)


def _is_checked(view: ClusterView, replica: Replica) -> bool:
    return any(
        found.node == replica.node
        and found.work == Verify(artifact=replica.artifact, tier=replica.tier)
        for found in pending_operations(view, replica.artifact)
    )
