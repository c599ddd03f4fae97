"""Random histories for tests: what many writers may have done, all of it legal, from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta

from samples import BEGIN, artifact_id, manifest
from tensorcast.log.execute import Origin, plan
from tensorcast.log.identity import new_event_id
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.commands import (
    AcquireLease,
    CancelOperation,
    Command,
    CompleteReplica,
    ConfigurePolicy,
    CordonNode,
    CorruptReplica,
    DisablePolicy,
    DrainNode,
    DropReplica,
    EmitSignal,
    EnablePolicy,
    EvictReplica,
    ExpireLease,
    FailOperation,
    FillReplica,
    GrantAccess,
    IssueOperation,
    JoinNode,
    LeaveEngine,
    LeaveNode,
    LoseEngine,
    LoseNode,
    LoseReplica,
    MoveKey,
    PinArtifact,
    RegisterEngine,
    ReleaseLease,
    RemoveArtifact,
    RemoveKey,
    ReportPressure,
    RequestReplicas,
    RequestVerification,
    RerouteOperation,
    RetryOperation,
    RevokeAccess,
    SealArtifact,
    ServeWeights,
    StartOperation,
    StartReplica,
    StopPolicy,
    SucceedOperation,
    UncordonNode,
    UnpinArtifact,
)
from tensorcast.schema.envelope import Draft
from tensorcast.schema.errors import TensorCastError
from tensorcast.schema.faults import Fault, FaultKind
from tensorcast.schema.ids import (
    EngineId,
    Epoch,
    Key,
    LeaseId,
    NodeId,
    OperationId,
    PlanId,
    Tier,
    replica_id,
)
from tensorcast.schema.namespaces import Namespace, Right
from tensorcast.schema.plan_commands import (
    EndPlan,
    FailStep,
    PausePlan,
    ResumePlan,
    StartStep,
    StopStep,
    SubmitPlan,
    SucceedStep,
)
from tensorcast.schema.plan_events import StepPath
from tensorcast.schema.plans import EmitStep, PlanSpec
from tensorcast.schema.signals import Topic
from tensorcast.schema.work import Evict, Load, Materialize, Persist, Verify

CHUNKS = 6


class Dice:
    """Commands by chance: few names, so that they meet each other."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._makers: tuple[Callable[[], Command], ...] = (
            *(self._seal, self._replica, self._replica, self._operation, self._lease),
            *(self._artifact, self._key, self._node, self._filling, self._running),
            *(self._engine, self._signal, self._plan, self._rule, self._policy),
        )

    def command(self) -> Command:
        """The next command; whether it may happen is not asked here."""
        return self._random.choice(self._makers)()

    def drafts(self, view: ClusterView) -> tuple[Draft, ...]:
        """The events of the next few commands that may happen and change something."""
        while True:
            count = self._random.choice((1, 1, 1, 2, 3))
            actor = self._random.choice(("user:ada@desk", "mover:n1", "policy:replicate"))
            cause = new_event_id() if self._random.random() < 0.5 else None
            try:
                commands = [self.command() for _ in range(count)]
                drafts, _ = plan(view, commands, Origin(actor=actor, cause=cause))
            except TensorCastError:
                continue
            if drafts:
                return drafts

    def _pick(self, *choices):
        return self._random.choice(choices)

    def _artifact_id(self):
        return artifact_id(self._pick("a", "b", "c"))

    def _node_id(self) -> NodeId:
        return NodeId(self._pick("n1", "n2"))

    def _epoch(self) -> Epoch:
        return Epoch(self._pick(1, 1, 1, 2))

    def _chunks(self) -> ChunkSet:
        return ChunkSet.of(self._random.sample(range(CHUNKS), self._random.randint(1, CHUNKS)))

    def _seal(self) -> Command:
        labels = {"step": str(self._random.randrange(9)), "note": "ünï \\u0000 '\"\n"}
        kind = self._pick("weights", "kv")
        return SealArtifact(
            artifact=self._artifact_id(), kind=kind, manifest=manifest(CHUNKS), labels=labels
        )

    def _artifact(self) -> Command:
        artifact = self._artifact_id()
        return self._pick(
            PinArtifact(artifact=artifact),
            UnpinArtifact(artifact=artifact),
            RequestReplicas(artifact=artifact, nodes=(self._node_id(),), tier=self._pick(*Tier)),
            RequestVerification(artifact=artifact, replicas=()),
            RemoveArtifact(artifact=artifact),
        )

    def _key(self) -> Command:
        key, expect = Key(self._pick("k", "llama@1")), self._pick(None, self._artifact_id())
        moved = MoveKey(key=key, artifact=self._artifact_id(), expect=expect)
        return self._pick(moved, moved, RemoveKey(key=key))

    def _replica_fields(self) -> dict[str, object]:
        artifact, node, tier = self._artifact_id(), self._node_id(), self._pick(*Tier)
        return {
            "replica": replica_id(artifact, node, tier),
            "artifact": artifact,
            "node": node,
            "tier": tier,
            "epoch": self._epoch(),
            "chunks_total": CHUNKS,
        }

    def _replica(self) -> Command:
        return self._pick(StartReplica, CompleteReplica)(**self._replica_fields())

    def _filling(self) -> Command:
        replica, epoch = self._replica_fields()["replica"], self._epoch()
        return self._pick(
            FillReplica(replica=replica, epoch=epoch, chunks=self._chunks()),
            FillReplica(replica=replica, epoch=epoch, chunks=self._chunks()),
            CorruptReplica(replica=replica, epoch=epoch, chunks=self._chunks(), detail="flip"),
            EvictReplica(replica=replica, epoch=epoch, reason="pressure"),
            DropReplica(replica=replica, epoch=epoch),
            LoseReplica(replica=replica, epoch=epoch, detail="gone"),
        )

    def _operation_id(self) -> OperationId:
        return OperationId(f"op-{self._random.randrange(12)}")

    def _operation(self) -> Command:
        work = self._pick(Materialize, Load, Persist, Evict, Verify)
        tier = {"tier": self._pick(*Tier)} if work in (Evict, Verify) else {}
        return IssueOperation(
            operation=self._operation_id(),
            node=self._node_id(),
            work=work(artifact=self._artifact_id(), **tier),
            policy="replicate",
        )

    def _running(self) -> Command:
        operation, epoch = self._operation_id(), self._epoch()
        fault = Fault(kind=self._pick(*FaultKind), detail="as chance wants it")
        moved = {"tcp": self._random.randrange(1 << 50)}
        return self._pick(
            StartOperation(operation=operation, epoch=epoch),
            StartOperation(operation=operation, epoch=epoch),
            SucceedOperation(operation=operation, epoch=epoch, bytes_moved=7, transports=moved),
            FailOperation(operation=operation, epoch=epoch, fault=fault),
            RetryOperation(operation=operation),
            RerouteOperation(
                operation=operation, sources=(self._node_id(),), instead_of=self._node_id()
            ),
            CancelOperation(operation=operation, reason="enough"),
        )

    def _node(self) -> Command:
        node, epoch = self._node_id(), self._epoch()
        tiers = {Tier.DRAM: 1 << 40, Tier.DISK: 0}
        return self._pick(
            JoinNode(node=node, epoch=epoch, address="h:1", tiers=tiers, transports=("tcp",)),
            JoinNode(node=node, epoch=epoch, address="h:2", tiers=tiers, transports=("tcp",)),
            LeaveNode(node=node, epoch=epoch),
            LoseNode(node=node, epoch=epoch, silent_s=self._random.random() * 10),
            CordonNode(node=node),
            UncordonNode(node=node),
            DrainNode(node=node),
            ReportPressure(
                node=node, epoch=epoch, tier=Tier.DRAM, needed_bytes=1 << 45, candidates=()
            ),
        )

    def _engine(self) -> Command:
        number = self._random.randrange(4)
        engine, life = EngineId(f"engine-{number}"), self._pick("one", "two")
        since = BEGIN + timedelta(seconds=self._random.randrange(1000))
        artifact = self._pick(None, self._artifact_id())
        register = RegisterEngine(
            engine=engine, life=life, kind="vllm", node=NodeId(f"n{number % 2 + 1}"), ttl_s=15.0
        )
        serve = ServeWeights(engine=engine, life=life, version="v", artifact=artifact, since=since)
        return self._pick(
            *(register, register, serve, serve),
            LeaveEngine(engine=engine, life=life),
            LoseEngine(engine=engine, life=life, last_seen=since),
        )

    def _signal(self) -> Command:
        number = self._random.randrange(3)
        return EmitSignal(topic=Topic(f"topic.{number}"), data={"n": number})

    def _plan(self) -> Command:
        plan, step = PlanId(f"plan-{self._random.randrange(9)}"), StepPath("a")
        spec = PlanSpec(name="dice", steps=(EmitStep(id="a", topic="t"),))
        attempt = self._pick(1, 1, 2)
        fault = Fault(kind=FaultKind.UNAVAILABLE, detail="gone")
        return self._pick(
            *[SubmitPlan(plan=plan, spec=spec)] * 2,
            *[StartStep(plan=plan, step=step, attempt=attempt)] * 2,
            SucceedStep(plan=plan, step=step, attempt=attempt, outputs={"n": [1, None, "x"]}),
            FailStep(plan=plan, step=step, attempt=attempt, fault=fault, retry_at=BEGIN),
            StopStep(plan=plan, step=step, reason="enough"),
            PausePlan(plan=plan),
            ResumePlan(plan=plan),
            EndPlan(plan=plan, step=step, fault=self._pick(None, fault)),
        )

    def _rule(self) -> Command:
        namespace = Namespace(self._pick("team", "other"))
        rights = self._pick((Right.READ,), (Right.WRITE, Right.KEYS), tuple(Right))
        who = self._pick("*", "bob", "eve")
        grant = GrantAccess(namespace=namespace, who=who, rights=rights)
        return self._pick(grant, grant, RevokeAccess(namespace=namespace, who=who, rights=rights))

    def _policy(self) -> Command:
        name = self._pick("spread", "keep-last")
        parameters: dict[str, object] = {"n": self._random.randrange(3)}
        return self._pick(
            EnablePolicy(policy=name, parameters=self._pick(None, parameters)),
            ConfigurePolicy(policy=name, parameters=parameters),
            DisablePolicy(policy=name),
            StopPolicy(policy=name, reason="raised", detail="KeyError"),
        )

    def _lease(self) -> Command:
        lease = LeaseId(f"lease-{self._random.randrange(20)}")
        taken = AcquireLease(
            lease=lease,
            artifact=self._artifact_id(),
            node=self._pick(None, self._node_id()),
            holder="engine-0",
            ttl_s=1 + self._random.random(),
        )
        return self._pick(
            taken, taken, ReleaseLease(lease=lease), ExpireLease(lease=lease, last_seen=BEGIN)
        )
