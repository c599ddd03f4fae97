"""All decisions that follow from one event, and whether one of them is still right to carry out.

A decision is taken in the view right after its event, so that every scheduler takes the same. It
is carried out later, when the cluster has moved on: `is_right` looks again.
"""

from __future__ import annotations

import msgspec

from tensorcast.controlplane.core.catalog import CATALOG, Catalog
from tensorcast.controlplane.core.guard import (
    ACTOR,
    RAISED,
    SLOW,
    Guard,
    NoAnswer,
    Overdue,
    gather,
    stop,
)
from tensorcast.controlplane.core.policies.base import Policy
from tensorcast.controlplane.core.view import (
    DRAINED,
    Aim,
    aim_of,
    has_survivor,
    is_draining,
    is_leased,
    is_pinned,
    is_ready,
    is_up,
    pending_operations,
    sealed,
)
from tensorcast.schema.aggregates.operation import OPEN, OperationStatus
from tensorcast.schema.aggregates.replica import ReplicaStatus
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.commands import CancelOperation, Command, IssueOperation, RetryOperation
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.ids import NodeId, OperationId, replica_id
from tensorcast.schema.plan_commands import SubmitPlan
from tensorcast.schema.work import Evict as EvictWork
from tensorcast.schema.work import Load, Materialize, Persist, Verify, Work

POLICIES = CATALOG.running(ClusterView())
"""Those that run when nobody has said anything."""


class Decision(msgspec.Struct, frozen=True):
    """What one policy wants done about one event: all of it that is still right, at once if
    possible. `ends` instead: the policy is stopped for how it answered. `fault` tells what was
    wrong with the answer; what keeps a cluster alive goes on with the next event nevertheless."""

    policy: str
    commands: tuple[Command, ...]
    ends: bool = False
    fault: str = ""

    @property
    def actor(self) -> str:
        """Who writes it to the log."""
        return ACTOR if self.ends else f"policy:{self.policy}"


def decide_reactions(
    view: ClusterView,
    recorded: Recorded,
    policies: tuple[Policy, ...] = POLICIES,
    *,
    catalog: Catalog = CATALOG,
    guard: Guard | None = None,
) -> tuple[Decision, ...]:
    """The answers of all policies to an event, without two operations that have one aim. A policy
    that raises, takes too long, or of which the guard says so, is stopped; the others go on. One
    that is essential and raises is not stopped: nothing follows from this event."""
    aims: set[Aim] = set()
    decisions = []
    for policy in policies:
        limits = catalog.limits(policy.name)
        try:
            answer = gather(policy.react(view, recorded), limits.event_commands_max)
            end = guard.judge(policy.name, limits, answer, recorded) if guard else None
        except Overdue as error:
            end, answer = stop(policy.name, SLOW, str(error)), ()
        except BaseException as error:  # a policy is anybody's code
            end, answer = stop(policy.name, RAISED, _describe(error)), ()
        if end is not None:
            spared = end.reason == RAISED and catalog.is_essential(policy.name)
            last = () if spared else (end,)
            decisions.append(Decision(policy.name, last, ends=True, fault=end.detail))
            continue
        commands = tuple(command for command in answer if _is_first(command, aims))
        if commands:
            decisions.append(Decision(policy.name, commands))
    return tuple(decisions)


def _describe(error: BaseException) -> str:
    """What was raised, and where."""
    if isinstance(error, NoAnswer):
        return str(error)
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = ""
    if place is not None:
        file = place.tb_frame.f_code.co_filename.rsplit("/", 1)[-1]
        where = f" ({file}, line {place.tb_lineno})"
    return f"{type(error).__name__}: {error}{where}"


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
    or that another pending one makes superfluous, is not issued again; nor is a plan submitted that
    somebody else was faster with."""
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
        case SubmitPlan(plan=plan):
            return plan not in view.plans
        case _:
            return True


def _is_taken(view: ClusterView, node: NodeId, work: Work, own: OperationId) -> bool:
    aim = aim_of(node, work)
    return any(
        other.id != own and aim_of(other.node, other.work) == aim
        for other in pending_operations(view, work.artifact)
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
