"""A cluster for tests of plans: the real folds and decisions, movers that obey, a clock that a test
moves. Nothing waits and nothing is random."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

import msgspec

from samples import BEGIN, artifact_id, event_id, manifest
from tensorcast.controlplane.core.plans.runner import next_due, react
from tensorcast.controlplane.core.plans.waits import is_wanted, listening
from tensorcast.schema.aggregates.plan import OPEN, Plan, StepState
from tensorcast.schema.cluster import ClusterView, decide, project
from tensorcast.schema.codec import decode, encode
from tensorcast.schema.commands import (
    Command,
    CompleteReplica,
    DropReplica,
    EvictReplica,
    FailOperation,
    JoinNode,
    SealArtifact,
    StartOperation,
    SucceedOperation,
)
from tensorcast.schema.envelope import Draft, Recorded
from tensorcast.schema.events import SignalEmitted
from tensorcast.schema.faults import Fault, FaultKind
from tensorcast.schema.ids import (
    ArtifactId,
    Epoch,
    NodeId,
    PlanId,
    Seq,
    Tier,
    derive_plan_id,
    replica_id,
)
from tensorcast.schema.plan_commands import SubmitPlan
from tensorcast.schema.plans import PlanSpec
from tensorcast.schema.signals import Pattern, Signal, matches
from tensorcast.schema.work import Evict, target_tier

MIB = 1 << 20
AWAY = Fault(kind=FaultKind.UNAVAILABLE, detail="The source is gone.")
Faults = Callable[[str, int], Fault | None]
"""The fault of an operation on a node: (node, how many the node has had before)."""


class PlanWorld:
    """A view, the events behind it, and the time. `appends` are the positions after each append;
    `issued` the operations in the order in which they were issued."""

    def __init__(self, nodes: int = 2, *, artifacts: Iterable[str] = ("a",)) -> None:
        self.view = ClusterView()
        self.events: list[Recorded] = []
        self.appends: list[int] = []
        self.now = BEGIN
        self.tries: dict[str, int] = {}
        self.effects: list[tuple[str, str]] = []
        for number in range(1, nodes + 1):
            self.join(f"n{number}")
        for name in artifacts:
            self.put(name, "n1")

    # ---- the cluster ---------------------------------------------------------------------------

    def join(self, name: str, epoch: int = 1) -> None:
        self.execute(
            JoinNode(
                node=NodeId(name),
                epoch=Epoch(epoch),
                address=f"{name}:1",
                tiers={Tier.DRAM: 1 << 30, Tier.DISK: 1 << 30},
                transports=("tcp",),
                bandwidth=100 * MIB,
            )
        )

    def put(self, name: str, *on: str, chunks: int = 4) -> ArtifactId:
        artifact = artifact_id(name)
        sealed = SealArtifact(artifact=artifact, kind="weights", manifest=manifest(chunks))
        self.execute(sealed, *(self._complete(artifact, NodeId(n), Tier.DRAM, chunks) for n in on))
        return artifact

    def _complete(self, artifact, node, tier, chunks) -> CompleteReplica:
        return CompleteReplica(
            replica=replica_id(artifact, node, tier),
            artifact=artifact,
            node=node,
            tier=tier,
            epoch=self.view.nodes[node].epoch,
            chunks_total=chunks,
        )

    def pass_time(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def execute(self, *commands: Command, because: int = 0, actor: str = "user:ada@desk") -> None:
        """Appends the events of all commands, or of none: raises what `decide` raises."""
        view, recorded = self.view, []
        cause = self.events[because - 1].id if because else None
        for command in commands:
            events, _ = decide(view, command)
            for event in events:
                seq = Seq(view.at + 1)
                draft = Draft(id=event_id(seq), at=self.now, actor=actor, event=event, cause=cause)
                recorded.append(decode(encode(draft), seq))  # as it comes back from the log
                view = project(view, recorded[-1])
                assert view.skipped == 0, f"{event} cannot follow"
        self.view = view
        self.events += recorded
        if recorded:
            self.appends.append(view.at)

    # ---- plans ---------------------------------------------------------------------------------

    def submit(self, spec: PlanSpec, name: str = "p", **inputs: object) -> PlanId:
        plan = derive_plan_id(name)
        spec = msgspec.json.decode(msgspec.json.encode(spec), type=PlanSpec)
        self.execute(SubmitPlan(plan=plan, spec=spec, inputs=inputs))
        return plan

    def heard(self, plan: Plan) -> dict[str, list[Signal]]:
        return {
            one.path: [
                signal for signal in self.signals(one.pattern, one.after) if is_wanted(one, signal)
            ]
            for one in listening(plan)
        }

    def signals(self, pattern: Pattern, after: int) -> Iterable[Signal]:
        for one in self.events[after:]:
            if isinstance(one.event, SignalEmitted) and matches(pattern, one.event.topic):
                yield Signal(
                    seq=one.seq,
                    topic=one.event.topic,
                    at=one.at,
                    actor=one.actor,
                    data=one.event.data,
                    id=one.id,
                )

    def look(self, plan: PlanId, *, most: int | None = None) -> int:
        """One look at a plan: carries out what follows; returns how many decisions that were."""
        state = self.view.plans[plan]
        decisions = react(self.view, state, self.now, self.heard(state))[:most]
        for decision in decisions:
            assert 0 < decision.because <= self.view.at, "a decision has a cause"
            self.execute(*decision.commands, because=decision.because, actor=plan)
        return len(decisions)

    def settle(self, plan: PlanId) -> None:
        """Looks until nothing follows any more."""
        for _ in range(1000):
            if not self.look(plan):
                return
        raise AssertionError("the plan is never at rest")

    # ---- movers --------------------------------------------------------------------------------

    def work(self, faults: Faults | None = None, *, only: str | None = None) -> int:
        """Every open operation (of one node) is carried out; returns how many."""
        done = 0
        for name in sorted(self.view.open_operations):
            operation = self.view.operations[name]
            if only in (None, operation.node):
                self._run(name, faults)
                done += 1
        return done

    def _run(self, name, faults: Faults | None) -> None:
        operation = self.view.operations[name]
        node, work = operation.node, operation.work
        epoch = self.view.nodes[node].epoch
        self.execute(StartOperation(operation=name, epoch=epoch))
        number = self.tries.get(node, 0)
        self.tries[node] = number + 1
        fault = faults(node, number) if faults else None
        if fault is not None:
            self.execute(FailOperation(operation=name, epoch=epoch, fault=fault))
            return
        tier = target_tier(work)
        if tier is not None:
            total = self.view.artifacts[work.artifact].manifest.chunks_total
            self.execute(self._complete(work.artifact, node, tier, total))
        elif isinstance(work, Evict):
            replica = replica_id(work.artifact, node, work.tier)
            self.execute(EvictReplica(replica=replica, epoch=epoch, reason=work.reason))
            self.execute(DropReplica(replica=replica, epoch=epoch))
        self.effects.append((str(msgspec.to_builtins(work)["kind"]), node))
        self.execute(
            SucceedOperation(operation=name, epoch=epoch, bytes_moved=4 * MIB if tier else 0)
        )

    # ---- to the end ----------------------------------------------------------------------------

    def run(self, plan: PlanId, faults: Faults | None = None, rounds: int = 200) -> Plan:
        """Looks, works and lets time pass until the plan is over, or nothing more can happen."""
        for _ in range(rounds):
            self.settle(plan)
            state = self.view.plans[plan]
            if state.status not in OPEN:
                return state
            if self.work(faults):
                continue
            due = next_due(state, self.now)
            if due is None:
                return state
            self.now = due
        raise AssertionError("the plan does not come to an end")

    def step(self, plan: PlanId, path: str) -> StepState | None:
        return self.view.plans[plan].steps.get(path)

    def statuses(self, plan: PlanId) -> dict[str, str]:
        return {path: step.status.value for path, step in self.view.plans[plan].steps.items()}


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)
