"""All decisions that follow from one event, and whether one of them is still right to carry out.

A decision is taken in the view right after its event, so that every scheduler takes the same. It
is carried out later, when the cluster has moved on: `is_right` looks again.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tensorcast.controlplane.core.broadcast import LABELS
from tensorcast.controlplane.core.policies.base import Policy
from tensorcast.controlplane.core.policies.drain import Drain
from tensorcast.controlplane.core.policies.evict import Evict
from tensorcast.controlplane.core.policies.promote import Promote
from tensorcast.controlplane.core.policies.repair import Repair
from tensorcast.controlplane.core.policies.replicate import Replicate
from tensorcast.controlplane.core.policies.reroute import Reroute
from tensorcast.controlplane.core.policies.verify import VerifyReplicas
from tensorcast.controlplane.core.view import (
    DRAINED,
    Aim,
    aim_of,
    has_survivor,
    is_draining,
    is_leased,
    is_pending,
    is_pinned,
    is_ready,
    is_up,
    operations_of,
    sealed,
)
from tensorcast.schema.aggregates.operation import OPEN, OperationStatus
from tensorcast.schema.aggregates.replica import ReplicaStatus
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.commands import CancelOperation, Command, IssueOperation, RetryOperation
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.ids import NodeId, OperationId, replica_id
from tensorcast.schema.work import Evict as EvictWork
from tensorcast.schema.work import Load, Materialize, Persist, Verify, Work


def make_policies(labels: Sequence[str] = LABELS) -> tuple[Policy, ...]:
    """All policies, in order of precedence: of two operations with one aim the first policy's is
    issued. `labels` of nodes say where they are, the widest place first."""
    return (
        Replicate(labels),
        Repair(),
        Evict(),
        Drain(),
        VerifyReplicas(),
        Promote(),
        Reroute(labels),
    )


POLICIES = make_policies()


class Decision(msgspec.Struct, frozen=True):
    """What one policy wants done about one event: all of it that is still right, at once if
    possible."""

    policy: str
    commands: tuple[Command, ...]


def decide_reactions(
    view: ClusterView, recorded: Recorded, policies: tuple[Policy, ...] = POLICIES
) -> tuple[Decision, ...]:
    """The answers of all policies to an event, without two operations that have one aim."""
    aims: set[Aim] = set()
    decisions = []
    for policy in policies:
        commands = tuple(
            command for command in policy.react(view, recorded) if _is_first(command, aims)
        )
        if commands:
            decisions.append(Decision(policy.name, commands))
    return tuple(decisions)


def _is_first(command: Command, aims: set[Aim]) -> bool:
    """Whether no command before had this aim. Modifies `aims`."""
    if not isinstance(command, IssueOperation):
        return True
    aim = aim_of(command.node, command.work)
    is_new = aim not in aims
    aims.add(aim)
    return is_new


def is_right(view: ClusterView, command: Command) -> bool:
    """Whether a decision still makes sense in a newer view. An operation that is there already,
    or that another pending one makes superfluous, is not issued again."""
    match command:
        case IssueOperation(operation=name, node=node, work=work):
            return (
                name not in view.operations
                and is_up(view, node)
                and not _is_taken(view, node, work, name)
                and _helps(view, node, work)
            )
        case RetryOperation(operation=name):
            operation = view.operations[name]
            return (
                operation.status is OperationStatus.FAILED
                and not _is_taken(view, operation.node, operation.work, name)
                and _helps(view, operation.node, operation.work)
            )
        case CancelOperation(operation=name):
            return name in view.operations and view.operations[name].status in OPEN
        case _:
            return True


def _is_taken(view: ClusterView, node: NodeId, work: Work, own: OperationId) -> bool:
    aim = aim_of(node, work)
    return any(
        other.id != own and is_pending(other) and aim_of(other.node, other.work) == aim
        for other in operations_of(view, work.artifact)
    )


def _helps(view: ClusterView, node: NodeId, work: Work) -> bool:
    match work:
        case Materialize() | Load() | Persist():
            _, artifact, _, tier = aim_of(node, work)
            assert tier is not None, "such work makes a replica"
            return sealed(view, artifact) is not None and not is_ready(view, artifact, node, tier)
        case EvictWork():
            return _may_evict(view, node, work)
        case Verify(artifact=artifact, tier=tier):
            return is_ready(view, artifact, node, tier)


def _may_evict(view: ClusterView, node: NodeId, work: EvictWork) -> bool:
    """Never what is leased; and of a sealed artifact neither what is pinned, nor the last copy,
    nor for a drain that was called off."""
    if work.reason == DRAINED and not is_draining(view, node):
        return False
    replica = view.replicas.get(replica_id(work.artifact, node, work.tier))
    if replica is None:
        return False
    if replica.status is ReplicaStatus.EVICTING:
        return True  # an earlier try stopped half-way: nobody is served from it any more
    if is_leased(view, work.artifact, node):
        return False
    if sealed(view, work.artifact) is None:
        return replica.status in (ReplicaStatus.READY, ReplicaStatus.FILLING)
    return (
        replica.status is ReplicaStatus.READY
        and not is_pinned(view, work.artifact)
        and has_survivor(view, replica)
    )
