"""The past through the SDK, with real NATS, Postgres and control plane."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

import tensorcast as tc
from controlplanes import CLUSTER, ControlPlane, open_hand
from samples import artifact_id
from tensorcast.client import Context
from tensorcast.log.identity import now
from tensorcast.schema.commands import (
    MoveKey,
    PinArtifact,
    RegisterEngine,
    RequestReplicas,
    ServeWeights,
)
from tensorcast.schema.ids import EngineId, Key, NodeId, Tier

A, B = artifact_id("a"), artifact_id("b")


@pytest.fixture
async def cluster(tmp_path, nats_server, postgres_url):
    """Artifact a on n1 under key k, asked for on n2, served by an engine; then b under k."""
    plane = ControlPlane(tmp_path, nats_server.url, postgres_url)
    await plane.start()
    try:
        async with open_hand(nats_server.url) as hand:
            await hand.join("n1", "n2")
            await hand.put("a", "n1")
            await hand.run(MoveKey(key=Key("k"), artifact=A))
            await hand.run(RequestReplicas(artifact=A, nodes=(NodeId("n2"),), tier=Tier.DRAM))
            await hand.until(lambda view: len(view.operations) == 1)
            engine, since = EngineId("e1"), now() - timedelta(seconds=1)
            await hand.write(
                RegisterEngine(engine=engine, life="one", kind="vllm", node=NodeId("n1"), ttl_s=99)
            )
            await hand.write(
                ServeWeights(engine=engine, life="one", version="v1", artifact=A, since=since)
            )
            await hand.put("b", "n1")
            await hand.run(MoveKey(key=Key("k"), artifact=B, expect=A))
            await hand.run(PinArtifact(artifact=A))
            yield Context(cluster=CLUSTER, nats_url=nats_server.url)
    finally:
        plane.end()


async def test_the_past_for_programs_that_await(cluster):
    async with tc.connect_async(cluster) as client:
        events = [event async for event in client.history()]
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        of_key = [event async for event in client.history(key="k")]
        assert [event.type for event in of_key] == ["key.moved", "key.moved"]
        assert of_key[0].fields["artifact"] == A
        replicas = client.history(artifact=A, types=["replica.*", "operation.*"])
        assert {event.type async for event in replicas} >= {"replica.ready", "operation.issued"}
        by_engine = client.history(engine="e1", after=of_key[0].at, until=now())
        assert len([event async for event in by_engine]) == 2
        with pytest.raises(tc.NotFound):
            await anext(client.history(operation="op-9999999999"))

        then, now_ = await client.at(of_key[1].seq - 1), await client.at(now())
        assert (await then.artifact("k")).id == A
        assert (await now_.artifact("k")).id == B
        assert len(await then.artifacts()) == 2
        assert [node.node for node in await then.nodes()] == ["n1", "n2"]
        assert (await now_.weights_of("e1")).version == "v1"
        assert [(one.kind, one.node) for one in await then.operations()] == [("materialize", "n2")]
        diff = await client.api.diff(then.seq, now_.seq)
        changed = {(one.change, one.kind, one.id) for one in diff.changes}
        assert {("changed", "key", "k"), ("changed", "artifact", A)} <= changed
        with pytest.raises(tc.InvalidArgument, match="no event"):
            await client.at(10_000)


async def test_the_past_for_programs_that_wait(cluster):
    def look() -> None:
        with tc.connect(cluster) as client:
            moves = list(client.history(key="k"))
            issued = next(client.history(types="operation.issued"))
            why = client.api.why(issued.seq)
            assert [one.type for one in why.causes] == ["artifact.replicas_requested"]
            with pytest.raises(tc.NotFound, match="never had a replica"):
                client.api.why(artifact=A, node="n2")
            assert client.api.why(artifact=A, node="n1").causes == ()
            lineage = client.lineage(A)
            assert [(one.key, one.until_seq) for one in lineage.keys] == [("k", moves[1].seq)]
            assert [(one.engine, one.until) for one in lineage.engines] == [("e1", None)]
            then = client.at(moves[0].at)
            assert then.seq >= moves[0].seq
            assert then.key("k").artifact == A
            assert then.state("key", "k").keys[0].artifact == A
            assert client.at(0).artifacts() == ()

    await asyncio.to_thread(look)
