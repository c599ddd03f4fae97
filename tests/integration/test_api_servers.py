"""The API over real NATS and real Postgres, by a control plane in a process of its own."""

from __future__ import annotations

import asyncio
import signal

import msgspec
import pytest

from controlplanes import CLUSTER, ControlPlane, open_hand
from tensorcast.controlplane.services.api_replay import summarize
from tensorcast.log.port import read_records
from tensorcast.schema import api, commands, subjects
from tensorcast.schema.cluster import ClusterView, project
from tensorcast.schema.errors import InvalidArgument, NotFound, Rejected, Unavailable
from tensorcast.schema.ids import Key, LeaseId, NodeId, Seq, Tier


@pytest.fixture
async def hand(nats_server):
    async with open_hand(nats_server.url) as hand:
        yield hand


@pytest.fixture
async def plane(tmp_path, nats_server, postgres_url):
    plane = ControlPlane(
        tmp_path,
        nats_server.url,
        postgres_url,
        TENSORCAST_HEARTBEAT_S="0.2",
        TENSORCAST_NODE_TIMEOUT_S="600",
    )
    await plane.start()
    yield plane
    plane.end()


async def replay_by_hand(hand, upto: Seq) -> ClusterView:
    view = ClusterView()
    async for batch in read_records(hand.log, after=Seq(0)):
        for recorded in batch:
            if recorded.seq <= upto:
                view = project(view, recorded)
            if recorded.seq >= upto:
                return view
    raise AssertionError


async def test_the_story_of_an_artifact(hand, plane):
    await hand.join("n1", "n2")
    artifact = await hand.put("a", "n1")
    moved = await hand.run(commands.MoveKey(key=Key("llama@1"), artifact=artifact))
    asked = await hand.run(
        commands.RequestReplicas(artifact=artifact, nodes=(NodeId("n2"),), tier=Tier.DRAM)
    )
    await hand.until(lambda view: len(view.operations) == 1)

    shown = await hand.ask("artifact.show", api.Show(what="llama@1"), api.ArtifactInfo)
    assert (shown.id, shown.keys, len(shown.replicas)) == (artifact, ("llama@1",), 1)
    key = await hand.ask("key.show", api.Show(what="llama@1"), api.KeyInfo)
    assert [(move.artifact, move.seq) for move in key.history] == [(artifact, moved.seq)]
    (operation,) = await hand.ask(
        "operation.list", api.Browse(artifact="llama@1"), tuple[api.OperationInfo, ...]
    )
    assert (operation.kind, operation.policy) == ("materialize", "replicate")
    assert operation.cause == asked.events[0]

    query = api.AuditQuery(what="llama@1", after=hand.view.at)
    history = await hand.ask("artifact.history", query, tuple[api.EventInfo, ...])
    assert [event.type for event in history] == [
        "artifact.sealed",
        "replica.ready",
        "key.moved",
        "artifact.replicas_requested",
        "operation.issued",
    ]
    assert [event.actor for event in history][-1] == "policy:replicate"
    caused = api.AuditQuery(cause=asked.events[0], after=hand.view.at)
    (issued,) = await hand.ask("audit.log", caused, tuple[api.EventInfo, ...])
    assert issued.type == "operation.issued"
    by_actor = api.AuditQuery(actor="user:*", after=hand.view.at)
    found = await hand.ask("audit.log", by_actor, tuple[api.EventInfo, ...])
    assert [event.seq for event in found] == [moved.seq, asked.seq]
    status = await hand.ask("status", api.Ask(), api.ClusterStatus)
    assert (status.last_seq, status.problems) == (hand.view.at, ())


async def test_a_replay_at_any_position_is_the_fold_of_that_many_events(hand, plane):
    await hand.join("n1", "n2")
    for name in "ab":
        artifact = await hand.put(name, "n1")
        await hand.run(commands.MoveKey(key=Key(name), artifact=artifact))
        await hand.run(
            commands.RequestReplicas(artifact=artifact, nodes=(NodeId("n2"),), tier=Tier.DISK)
        )
    await hand.run(commands.RemoveKey(key=Key("a")))
    await hand.run(commands.CordonNode(node=NodeId("n2")))
    last = await hand.log.last_seq()
    history = await hand.ask("audit.log", api.AuditQuery(), tuple[api.EventInfo, ...])
    for seq in range(last + 1):
        answered = await hand.ask("replay", api.ReplayQuery(to_seq=Seq(seq)), api.ReplayInfo)
        view = await replay_by_hand(hand, Seq(seq)) if seq else ClusterView()
        assert answered == msgspec.structs.replace(
            summarize(view, kind=None, what=None),
            at=history[seq - 1].at if seq else None,
            last_seq=last,
        )
    at = api.ReplayQuery(to_time=history[2].at)
    assert (await hand.ask("replay", at, api.ReplayInfo)).at_seq >= 3
    with pytest.raises(InvalidArgument, match=f"The last one is {last}"):
        await hand.ask("replay", api.ReplayQuery(to_seq=Seq(last + 1)), api.ReplayInfo)


async def test_guards_and_nonsense(hand, plane):
    await hand.join("n1", "n2")
    artifact = await hand.put("a", "n1")
    await hand.run(commands.MoveKey(key=Key("k"), artifact=artifact))
    await hand.write(commands.LeaveNode(node=NodeId("n2"), epoch=1))
    for command, error, words in (
        (commands.RemoveArtifact(artifact=artifact), Rejected, "Key k points"),
        (commands.MoveKey(key=Key("x"), artifact="f" * 40), NotFound, "no artifact"),
        (
            commands.RequestReplicas(artifact=artifact, nodes=(NodeId("n2"),)),
            Unavailable,
            "Node n2 was stopped",
        ),
        (
            commands.AcquireLease(
                lease=LeaseId("l"), artifact="f" * 40, node=None, holder="me", ttl_s=5
            ),
            NotFound,
            "no artifact",
        ),
    ):
        with pytest.raises(error, match=words):
            await hand.run(command)
    for verb, payload in (("execute", b"{"), ("artifact.show", b"\xff"), ("what.is.this", b"")):
        with pytest.raises(InvalidArgument):
            await hand.ask(verb, payload, object)
    removed = await hand.run(commands.RemoveArtifact(artifact=artifact), force=True)
    assert len(removed.events) == 2


async def test_many_requests_at_once(hand, plane):
    await hand.join("n1")
    artifact = await hand.put("a", "n1")
    await hand.run(commands.MoveKey(key=Key("k"), artifact=artifact))
    shown = await asyncio.gather(
        *(hand.ask("artifact.show", api.Show(what="k"), api.ArtifactInfo) for _ in range(200)),
        *(hand.run(commands.MoveKey(key=Key(f"k{i}"), artifact=artifact)) for i in range(50)),
    )
    assert len(shown) == 250
    keys = await hand.ask("key.list", api.Browse(), tuple[api.KeyInfo, ...])
    assert len(keys) == 51


async def test_it_stops_at_once_and_in_good_order(plane):
    loop = asyncio.get_running_loop()
    begin = loop.time()
    assert plane.end(signal.SIGTERM) == 0
    assert loop.time() - begin < 2.0


async def test_a_lease_lives_while_it_is_renewed(hand, plane):
    await hand.join("n1")
    artifact = await hand.put("a", "n1")
    lease = commands.AcquireLease(
        lease=LeaseId("an engine/1"), artifact=artifact, node=None, holder="me", ttl_s=1.0
    )
    await hand.run(lease)
    for _ in range(8):
        await hand.log.nats.publish(subjects.renewal(CLUSTER, lease.lease), b"")
        await asyncio.sleep(0.25)
    assert artifact in hand.view.leases_by_artifact
    await hand.until(lambda view: artifact not in view.leases_by_artifact, 5)


async def test_a_silent_node_is_lost_and_its_replicas_are_made_elsewhere(
    hand, tmp_path, nats_server, postgres_url
):
    plane = ControlPlane(
        tmp_path,
        nats_server.url,
        postgres_url,
        TENSORCAST_HEARTBEAT_S="0.2",
        TENSORCAST_NODE_TIMEOUT_S="1",
    )
    beats = asyncio.ensure_future(_beat(hand, "n1", "n3"))
    try:
        await hand.join("n1", "n2", "n3")
        artifact = await hand.put("a", "n1")
        await hand.write(
            commands.RequestReplicas(artifact=artifact, nodes=(NodeId("n2"),), tier=Tier.DRAM)
        )
        await plane.start()
        view = await hand.until(
            lambda view: any(op.policy == "repair" for op in view.operations.values())
        )
        assert view.nodes[NodeId("n2")].status == "lost"
        repaired = [op for op in view.operations.values() if op.policy == "repair"]
        assert [op.node for op in repaired] == ["n3"]
        assert {view.nodes[NodeId(name)].status for name in ("n1", "n3")} == {"up"}
    finally:
        beats.cancel()
        plane.end()


async def _beat(hand, *names: str) -> None:
    while True:
        for name in names:
            await hand.log.nats.publish(
                subjects.heartbeat(CLUSTER, NodeId(name)), b'{"epoch": 1, "tiers": {}}'
            )
        await asyncio.sleep(0.2)
