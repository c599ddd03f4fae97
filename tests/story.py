"""A story that uses every type of event, and the recorder that makes a log of it.

At each release: `.venv/bin/python tests/story.py 0.2` writes `replay/v0.2.ndjson` (the log) and
`replay/v0.2.view.json` (what it folds to). Such files are never changed: later releases read them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from immutables import Map

from tensorcast.schema import commands as c
from tensorcast.schema import plan_commands as p
from tensorcast.schema.chunks import ChunkSet, count_chunks
from tensorcast.schema.cluster import ClusterView, decide, project
from tensorcast.schema.codec import decode, encode
from tensorcast.schema.envelope import Draft, Recorded
from tensorcast.schema.faults import Detour, Fault, FaultKind
from tensorcast.schema.ids import (
    ArtifactId,
    EngineId,
    Epoch,
    EventId,
    Key,
    LeaseId,
    NodeId,
    OperationId,
    ReplicaId,
    Seq,
    Tier,
    derive_operation_id,
    derive_plan_id,
    replica_id,
)
from tensorcast.schema.namespaces import Namespace, Right
from tensorcast.schema.plan_events import StepPath
from tensorcast.schema.plan_values import ValueType
from tensorcast.schema.plans import EmitStep, Input, OperationStep, PlanSpec
from tensorcast.schema.signals import Topic
from tensorcast.schema.tensors import Manifest, derive_artifact_id, lay_out
from tensorcast.schema.work import Evict, Load, Materialize, Persist, Verify, Work

LOGS = Path(__file__).parent / "replay"
BEGIN = datetime(2030, 1, 1, tzinfo=UTC)
ADA, TIMERS = "user:ada@desk", "timers"
N1, N2, N3 = (NodeId(f"n{i}") for i in (1, 2, 3))
ONE, TWO = Epoch(1), Epoch(2)
LLAMA, LATEST = Key("llama-8b@1"), Key("llama-8b@latest")
PULL = StepPath("pull")
TIERS = {Tier.DRAM: 8 << 30, Tier.DISK: 64 << 30}
Line = tuple[str, c.Command]


def content(name: str, dtype: str) -> tuple[ArtifactId, Manifest]:
    """An artifact of three chunks: one tensor, another of a different dtype, and a scalar."""
    index, size = lay_out(
        [
            (f"{name}.weight", dtype, (1024, 1500)),
            (f"{name}.bias", "F32", (1000,)),
            (f"{name}.scale", "F8_E4M3", ()),
        ]
    )
    digests = b"".join(bytes([i]) * 8 for i in range(count_chunks(size, 1 << 20)))
    manifest = Manifest(index=index, size_bytes=size, chunk_bytes=1 << 20, digests=digests)
    identity = derive_artifact_id(index, size, [bytes([i]) * 32 for i in range(len(digests) // 8)])
    return identity, manifest


A, A_MANIFEST = content("model.layers.0.mlp", "BF16")
B, B_MANIFEST = content("lora.a", "F16")
TOTAL = A_MANIFEST.chunks_total


def join(node: NodeId, epoch: Epoch) -> Line:
    address = f"10.0.0.{node[1:]}:7001"
    command = c.JoinNode(
        node=node,
        epoch=epoch,
        address=address,
        tiers=TIERS,
        transports=("tcp",),
        labels={"rack": "7"},
    )
    return f"mover:{node}", command


def seal(artifact: ArtifactId, manifest: Manifest, kind: str) -> Line:
    return ADA, c.SealArtifact(
        artifact=artifact, kind=kind, manifest=manifest, labels={"step": "1", "lang": "日本"}
    )


def replica(node: NodeId, tier: Tier = Tier.DRAM, artifact: ArtifactId = A) -> ReplicaId:
    return replica_id(artifact, node, tier)


def start(node: NodeId, epoch: Epoch = ONE, tier: Tier = Tier.DRAM) -> Line:
    return f"mover:{node}", c.StartReplica(
        replica=replica(node, tier),
        artifact=A,
        node=node,
        tier=tier,
        epoch=epoch,
        chunks_total=TOTAL,
    )


def complete(node: NodeId, tier: Tier = Tier.DRAM, artifact: ArtifactId = A) -> Line:
    epoch = TWO if node == N2 else ONE
    return f"mover:{node}", c.CompleteReplica(
        replica=replica(node, tier, artifact),
        artifact=artifact,
        node=node,
        tier=tier,
        epoch=epoch,
        chunks_total=TOTAL,
    )


def operation(ordinal: int) -> OperationId:
    return derive_operation_id("story", "replicate", ordinal)


def issue(ordinal: int, node: NodeId, work: Work, policy: str = "replicate") -> Line:
    return f"policy:{policy}", c.IssueOperation(
        operation=operation(ordinal), node=node, work=work, policy=policy
    )


def begin(ordinal: int, node: NodeId, epoch: Epoch = ONE) -> Line:
    return f"mover:{node}", c.StartOperation(operation=operation(ordinal), epoch=epoch)


def succeed(ordinal: int, node: NodeId, epoch: Epoch = ONE, moved: int = 0) -> Line:
    return f"mover:{node}", c.SucceedOperation(
        operation=operation(ordinal), epoch=epoch, bytes_moved=moved, transports={"tcp": moved}
    )


def put() -> Iterator[Line]:
    yield join(N1, ONE)
    yield join(N2, ONE)
    yield seal(A, A_MANIFEST, "weights")
    yield ADA, complete(N1)[1]
    yield ADA, c.MoveKey(key=LLAMA, artifact=A)
    yield ADA, c.PinArtifact(artifact=A)
    yield ADA, c.AcquireLease(lease=LeaseId("l1"), artifact=A, node=N1, holder=ADA, ttl_s=30.0)
    yield ADA, c.AcquireLease(lease=LeaseId("l2"), artifact=A, node=None, holder=ADA, ttl_s=5.0)


def replicate() -> Iterator[Line]:
    """To n2, whose mover dies in the middle, loses its memory and comes back."""
    yield ADA, c.RequestReplicas(artifact=A, nodes=(N2,), tier=Tier.DRAM)
    yield issue(0, N2, Materialize(artifact=A, sources=(N1,)))
    yield begin(0, N2)
    yield start(N2)
    chunks = ChunkSet.of([0, 2])
    yield f"mover:{N2}", c.FillReplica(replica=replica(N2), epoch=ONE, chunks=chunks)
    yield TIMERS, c.LoseNode(node=N2, epoch=ONE, silent_s=5.25)
    yield join(N2, TWO)
    yield f"mover:{N2}", c.LoseReplica(replica=replica(N2), epoch=TWO, detail="not found at start")
    yield begin(0, N2, TWO)
    fault = Fault(kind=FaultKind.UNAVAILABLE, detail="Node n1 closed the connection.")
    yield (
        f"mover:{N2}",
        c.FailOperation(
            operation=operation(0),
            epoch=TWO,
            fault=fault,
            bytes_moved=1 << 20,
            transports={"tcp": 1 << 20},
            detours=(Detour(peer=N1, before="rdma", after="tcp", why="RETRY_EXC_ERR"),),
        ),
    )
    yield "controlplane", c.RetryOperation(operation=operation(0))
    yield (
        "policy:replicate",
        c.RerouteOperation(operation=operation(0), sources=(N3, N1), instead_of=N1),
    )
    yield begin(0, N2, TWO)
    yield start(N2, TWO)
    yield complete(N2)
    yield succeed(0, N2, TWO, moved=A_MANIFEST.size_bytes)


def look_after() -> Iterator[Line]:
    """Verification, damage, pressure, eviction; leases and pins end."""
    yield ADA, c.RequestVerification(artifact=A, replicas=(replica(N2),))
    yield issue(1, N2, Verify(artifact=A, tier=Tier.DRAM), "verify")
    yield begin(1, N2, TWO)
    yield (
        f"mover:{N2}",
        c.CorruptReplica(
            replica=replica(N2), epoch=TWO, chunks=ChunkSet.of([1]), detail="chunk 1: other digest"
        ),
    )
    yield succeed(1, N2, TWO)
    yield complete(N2)
    yield issue(2, N1, Persist(artifact=A), "evict")
    yield ADA, c.CancelOperation(operation=operation(2), reason="asked by ada")
    yield ADA, c.ReleaseLease(lease=LeaseId("l1"))
    yield TIMERS, c.ExpireLease(lease=LeaseId("l2"), last_seen=BEGIN + timedelta(seconds=9))
    yield ADA, c.UnpinArtifact(artifact=A)
    yield (
        f"mover:{N1}",
        c.ReportPressure(
            node=N1, epoch=ONE, tier=Tier.DRAM, needed_bytes=1 << 30, candidates=(replica(N1),)
        ),
    )
    yield (
        f"mover:{N1}",
        c.ReportRelief(
            node=N1, epoch=ONE, tier=Tier.DRAM, free_bytes=1 << 30, candidates=(replica(N1),)
        ),
    )
    yield issue(3, N1, Evict(artifact=A, tier=Tier.DRAM, reason="pressure"), "evict")
    yield begin(3, N1)
    yield f"mover:{N1}", c.EvictReplica(replica=replica(N1), epoch=ONE, reason="pressure")
    yield f"mover:{N1}", c.DropReplica(replica=replica(N1), epoch=ONE)
    yield succeed(3, N1)


def change() -> Iterator[Line]:
    """Another artifact, keys that move, nodes under orders; the end is in the middle of work."""
    yield seal(B, B_MANIFEST, "adapter")
    yield ADA, complete(N1, artifact=B)[1]
    yield ADA, c.MoveKey(key=LATEST, artifact=A)
    yield ADA, c.MoveKey(key=LATEST, artifact=B, expect=A)
    yield ADA, c.CordonNode(node=N1)
    yield ADA, c.UncordonNode(node=N1)
    yield join(N3, ONE)
    yield ADA, c.DrainNode(node=N3)
    yield f"mover:{N3}", c.LeaveNode(node=N3, epoch=ONE)
    yield ADA, c.RemoveKey(key=LLAMA, expect=A)
    yield ADA, c.RemoveArtifact(artifact=A)
    yield ADA, c.RequestReplicas(artifact=B, nodes=(N2, N1), tier=Tier.DISK)
    yield issue(4, N1, Load(artifact=B))
    yield begin(4, N1)


def serve() -> Iterator[Line]:
    """An engine that gets new weights, falls silent and comes back; another life of it leaves."""
    name = EngineId("vllm-0")
    actor = f"engine:{name}"

    def register(life: str) -> Line:
        return actor, c.RegisterEngine(
            engine=name,
            life=life,
            kind="vllm",
            node=N1,
            model="llama-8b",
            url="http://10.0.0.1:8000",
            ttl_s=15.0,
            labels={"pool": "rollout"},
        )

    def weights(life: str, version: str, artifact: ArtifactId | None, second: int) -> Line:
        since = BEGIN + timedelta(seconds=second)
        return actor, c.ServeWeights(
            engine=name, life=life, version=version, artifact=artifact, since=since
        )

    yield register("one")
    yield weights("one", "disk", None, 100)
    yield weights("one", "llama-8b@2", B, 200)
    yield TIMERS, c.LoseEngine(engine=name, life="one", last_seen=BEGIN + timedelta(seconds=210))
    yield register("one")
    yield weights("one", "llama-8b@2", B, 200)
    yield register("two")
    yield actor, c.LeaveEngine(engine=name, life="two")


def tell() -> Iterator[Line]:
    """Signals: two on one topic, one on another."""
    for number in (1, 2):
        data: dict[str, object] = {"key": f"llama-8b@{number}", "of": [number, None], "日": "本"}
        yield ADA, c.EmitSignal(topic=Topic("weights.published"), data=data)
    yield TIMERS, c.EmitSignal(topic=Topic("engine.load.e1"))


def plan() -> Iterator[Line]:
    """One plan that is paused and resumed, fails a try, skips a step and succeeds; one that fails;
    one that is cancelled in the middle."""
    one, two, three = (derive_plan_id(f"story-{number}") for number in (1, 2, 3))
    spec = PlanSpec(
        name="roll out",
        inputs={"node": Input(type=ValueType.NODE)},
        steps=(
            OperationStep(id="pull", artifact=LATEST, node="${input.node}"),
            EmitStep(id="say", topic="pulled", data={"artifact": "${pull.artifact}"}),
        ),
        outputs={"artifact": "${pull.artifact}"},
        dedup_id="story",
    )
    fault = Fault(kind=FaultKind.UNAVAILABLE, detail="Node n2 is not up.")
    again = BEGIN + timedelta(seconds=500)
    for name in (one, two, three):
        yield ADA, p.SubmitPlan(plan=name, spec=spec, inputs={"node": "n2"})
        values: dict[str, object] = {"artifact": B, "nodes": ["n2"]}
        step = p.StartStep(
            plan=name, step=PULL, attempt=1, inputs=values, operations=(operation(4),)
        )
        yield name, step
    yield ADA, p.PausePlan(plan=one, reason="lunch")
    yield ADA, p.ResumePlan(plan=one)
    yield one, p.FailStep(plan=one, step=PULL, attempt=1, fault=fault, retry_at=again)
    yield one, p.StartStep(plan=one, step=PULL, attempt=2, inputs=values)
    yield one, p.SucceedStep(plan=one, step=PULL, attempt=2, outputs={"artifact": B, "日": 1.5})
    yield one, p.SkipStep(plan=one, step=StepPath("say"), reason="nobody listens")
    yield one, p.EndPlan(plan=one, outputs={"artifact": B})
    yield two, p.FailStep(plan=two, step=PULL, attempt=1, fault=fault)
    yield two, p.EndPlan(plan=two, step=PULL, fault=fault)
    yield ADA, p.CancelPlan(plan=three, reason="enough")
    yield three, p.StopStep(plan=three, step=PULL, reason="the plan is cancelled")
    yield three, p.EndPlan(plan=three)


def rule() -> Iterator[Line]:
    """A namespace gets rules, and loses one."""
    team = Namespace("team")
    rights = (Right.READ, Right.KEYS)
    yield ADA, c.GrantAccess(namespace=team, who="bob", rights=rights)
    yield ADA, c.RevokeAccess(namespace=team, who="bob", rights=(Right.KEYS,))


def steer() -> Iterator[Line]:
    """A policy is set, turned on, stopped, turned on again and off."""
    name = "keep-last"
    yield ADA, c.ConfigurePolicy(policy=name, parameters={"versions": 3, "keys": ["日*"]})
    yield ADA, c.EnablePolicy(policy=name)
    yield "controlplane:guard", c.StopPolicy(policy=name, reason="raised", detail="KeyError: 'x'")
    yield ADA, c.EnablePolicy(policy=name, parameters={})
    yield ADA, c.DisablePolicy(policy=name)


def record() -> tuple[Recorded, ...]:
    """The log of the whole story: fixed ids, one event a second, each caused by the one before."""
    view = ClusterView()
    log: list[Recorded] = []
    parts = (put(), replicate(), look_after(), change(), serve(), tell(), plan(), rule(), steer())
    for actor, command in (line for part in parts for line in part):
        events, _ = decide(view, command)
        assert events, command
        for event in events:
            seq = Seq(len(log) + 1)
            draft = Draft(
                id=EventId(f"01941f29-7c00-7000-8000-{seq:012x}"),
                at=BEGIN + timedelta(seconds=seq, microseconds=seq),
                actor=actor,
                event=event,
                cause=log[-1].id if log else None,
                trace="4bf92f3577b34da6a3ce929d0e0e4736" if seq == 1 else None,
            )
            log.append(decode(encode(draft), seq))
            view = project(view, log[-1])
    return tuple(log)


def to_json(view: ClusterView) -> object:
    """A view as plain JSON values."""

    def plain(value: object) -> object:
        if isinstance(value, Map):
            if all(member is None for member in value.values()) and value:
                return sorted(value)  # a set
            return {key: value[key] for key in sorted(value)}
        raise NotImplementedError(f"{type(value).__name__} has no JSON form")

    return msgspec.json.decode(msgspec.json.encode(view, enc_hook=plain, order="deterministic"))


def write(version: str) -> None:
    """Records the story as the log of a release. Raises FileExistsError: it is recorded once."""
    log = record()
    view = ClusterView()
    with (LOGS / f"v{version}.ndjson").open("xb") as lines:
        for recorded in log:
            view = project(view, recorded)
            lines.write(encode(to_draft(recorded)) + b"\n")
    text = msgspec.json.format(msgspec.json.encode(to_json(view)), indent=1)
    (LOGS / f"v{version}.view.json").write_bytes(text + b"\n")


def to_draft(recorded: Recorded) -> Draft:
    """What was appended to get this record."""
    return Draft(
        id=recorded.id,
        at=recorded.at,
        actor=recorded.actor,
        cause=recorded.cause,
        trace=recorded.trace,
        event=recorded.event,
    )


if __name__ == "__main__":
    write(sys.argv[1])
