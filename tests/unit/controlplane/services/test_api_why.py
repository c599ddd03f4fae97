"""Reasons and lineage: what led to an event, what came of it, and what an artifact was used for."""

import msgspec
import pytest

from rigs import read_all, running_rig
from samples import BEGIN, artifact_id, manifest
from tensorcast.controlplane.services.api import answer
from tensorcast.schema.api import Show, parse_reply
from tensorcast.schema.api_past import LineageInfo, WhyInfo, WhyQuery
from tensorcast.schema.engine_events import EngineRegistered, EngineServing
from tensorcast.schema.errors import InvalidArgument, NotFound
from tensorcast.schema.events import (
    ArtifactSealed,
    KeyMoved,
    NodeJoined,
    OperationIssued,
    OperationStarted,
    ReplicaReady,
    ReplicasRequested,
    ReplicaStarted,
)
from tensorcast.schema.ids import EngineId, Epoch, Key, NodeId, OperationId, Seq, Tier, replica_id
from tensorcast.schema.work import Materialize

A, B = artifact_id("a"), artifact_id("b")
N1 = NodeId("n1")


def sealed(artifact, **labels):
    named = {name.replace("_", "-"): value for name, value in labels.items()}
    return ArtifactSealed(artifact=artifact, kind="weights", manifest=manifest(), labels=named)


def replica(kind):
    return kind(
        replica=replica_id(A, N1, Tier.DRAM),
        artifact=A,
        node=N1,
        tier=Tier.DRAM,
        epoch=Epoch(1),
        chunks_total=4,
    )


@pytest.fixture
async def rig():
    """1 node, 2 a, 3 a request of it, 4 an operation for that, 5 its start, 6 and 7 its replica."""
    async with running_rig() as rig:
        joined = NodeJoined(
            node=N1, epoch=Epoch(1), address="h:1", tiers={Tier.DRAM: 1 << 30}, transports=("tcp",)
        )
        await rig.append(joined, sealed(A))
        operation = OperationId("op-0123456789")
        work = Materialize(artifact=A)
        await rig.append(ReplicasRequested(artifact=A, nodes=(N1,), tier=Tier.DRAM))
        for event in (
            OperationIssued(operation=operation, node=N1, work=work, policy="replicate"),
            OperationStarted(operation=operation, epoch=Epoch(1), attempt=1),
            replica(ReplicaStarted),
        ):
            last = (await read_all(rig.log))[-1]
            await rig.append(event, cause=last.id)
        await rig.append(replica(ReplicaReady), cause=(await read_all(rig.log))[4].id)
        yield rig


async def ask(rig, verb, request, shape):
    return parse_reply(await answer(rig.desk, verb, msgspec.json.encode(request)), shape)


def seqs(events):
    return [one.seq for one in events]


async def test_what_led_to_an_event_and_what_came_of_it(rig):
    info = await ask(rig, "audit.why", WhyQuery(event="5"), WhyInfo)
    assert (seqs(info.causes), info.event.seq, seqs(info.effects)) == ([3, 4], 5, [6, 7])
    same = await ask(rig, "audit.why", WhyQuery(event=info.event.id.upper()), WhyInfo)
    assert same == info
    root = await ask(rig, "audit.why", WhyQuery(event=" #3 "), WhyInfo)
    assert (root.causes, seqs(root.effects), root.more) == ((), [4, 5, 6, 7], False)
    alone = await ask(rig, "audit.why", WhyQuery(event="1"), WhyInfo)
    assert (alone.causes, alone.effects) == ((), ())


async def test_few_effects_are_the_nearest(rig):
    info = await ask(rig, "audit.why", WhyQuery(event="3", limit=2), WhyInfo)
    assert (seqs(info.effects), info.more) == ([4, 5], True)
    none = await ask(rig, "audit.why", WhyQuery(event="7", limit=0), WhyInfo)
    assert (none.effects, none.more) == ((), False)


async def test_why_a_node_has_an_artifact(rig):
    info = await ask(rig, "audit.why", WhyQuery(artifact=A, node=N1), WhyInfo)
    assert (info.event.type, seqs(info.causes)) == ("replica.ready", [3, 4, 5])
    query = WhyQuery(artifact=A, node=N1, tier=Tier.DISK)
    with pytest.raises(NotFound, match="never had a replica"):
        await ask(rig, "audit.why", query, object)


@pytest.mark.parametrize("name", ["99", "0", "0" * 8 + "-0000-8000-8000-" + "0" * 12])
async def test_no_such_event(rig, name):
    with pytest.raises(NotFound, match="no event"):
        await ask(rig, "audit.why", WhyQuery(event=name), object)


@pytest.mark.parametrize("name", ["", "abc", "replica.ready", "-1", "9" * 40])
async def test_what_names_no_event(rig, name):
    with pytest.raises(InvalidArgument, match="neither a position nor"):
        await ask(rig, "audit.why", WhyQuery(event=name), object)
    with pytest.raises(InvalidArgument, match="No event is named"):
        await ask(rig, "audit.why", WhyQuery(artifact=A), object)


async def test_the_lineage_of_an_artifact(rig):
    key, engine = Key("base"), EngineId("e1")
    await rig.append(KeyMoved(key=key, artifact=A, previous=None, version=1))  # 8
    await rig.append(sealed(B, made_from="base", made_by="merge-lora"))  # 9
    await rig.append(KeyMoved(key=key, artifact=B, previous=A, version=2))  # 10
    registered = EngineRegistered(
        engine=engine, life="one", kind="vllm", node=N1, model="m", url="http://e", ttl_s=9.0
    )
    serving = EngineServing(engine=engine, life="one", version="v1", artifact=A, since=BEGIN)
    await rig.append(registered, serving)  # 11, 12
    of_a = await ask(rig, "artifact.lineage", Show(what=A), LineageInfo)
    assert (of_a.sealed_seq, of_a.sealed_by, of_a.sources) == (2, "test", ())
    assert [(one.artifact, one.by, one.seq) for one in of_a.results] == [(B, "merge-lora", 9)]
    assert [(one.key, one.since_seq, one.until_seq) for one in of_a.keys] == [("base", 8, 10)]
    assert [(one.engine, one.version, one.until) for one in of_a.engines] == [("e1", "v1", None)]
    of_b = await ask(rig, "artifact.lineage", Show(what="base"), LineageInfo)
    assert of_b.artifact == B
    assert [one.artifact for one in of_b.sources] == [A]  # where `base` pointed then
    assert (of_b.engines, of_b.results) == ((), ())
    then = await ask(rig, "artifact.lineage", Show(what=A, at=Seq(9)), LineageInfo)
    assert [one.until for one in then.keys] == [None]
    assert then.engines == ()
    with pytest.raises(NotFound):
        await ask(rig, "artifact.lineage", Show(what="nothing"), object)
