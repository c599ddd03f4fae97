"""A log that is taken out of one cluster and brought into another one is the same log."""

from __future__ import annotations

import pytest

from controlplanes import CLUSTER, ControlPlane, open_hand
from servers import NatsServer
from tensorcast.client import AsyncClient, Context, verify_log_file
from tensorcast.client.log_files import open_log_file
from tensorcast.schema import commands
from tensorcast.schema.api import AuditQuery, ReplayQuery
from tensorcast.schema.api_audit import ImportEvents
from tensorcast.schema.errors import Conflict, Corrupt, InvalidArgument, Unavailable
from tensorcast.schema.ids import Key, NodeId, Seq, Tier


def client_of(nats: NatsServer) -> AsyncClient:
    return AsyncClient(
        Context(cluster=CLUSTER, nats_url=nats.url, home=None, nodes={}, default_node=None)
    )


def plane_of(folder, nats, postgres_url, **more) -> ControlPlane:
    folder.mkdir()
    audit = str(folder / "audit")
    patient = "600"  # the nodes of this test are written by hand, and silent
    return ControlPlane(
        folder,
        nats.url,
        postgres_url,
        TENSORCAST_AUDIT_DIR=audit,
        TENSORCAST_NODE_TIMEOUT_S=patient,
        **more,
    )


@pytest.fixture
def other_nats(tmp_path):
    folder = tmp_path / "other-nats"
    folder.mkdir()
    server = NatsServer(folder)
    server.start()
    yield server
    server.stop()


async def live(nats_url: str) -> None:
    """Some life in a cluster: what policies answer is in it too."""
    async with open_hand(nats_url) as hand:
        await hand.join("n1", "n2")
        artifact = await hand.put("a", "n1")
        await hand.run(commands.MoveKey(key=Key("llama@1"), artifact=artifact))
        await hand.run(
            commands.RequestReplicas(artifact=artifact, nodes=(NodeId("n2"),), tier=Tier.DRAM)
        )
        await hand.run(commands.MoveKey(key=Key("a b.c>d*" + "ü" * 200), artifact=artifact))
        await hand.until(lambda view: len(view.operations) == 1)


async def look(client: AsyncClient, last: int):
    """State, history and proof up to a position."""
    replayed = await client.api.replay(ReplayQuery(to_seq=Seq(last)))
    found = await client.api.audit(AuditQuery(before=Seq(last + 1)))
    return replayed, found, await client.verify_log(last=last, anchors=None)


async def break_off(plane: ControlPlane, client: AsyncClient, path) -> None:
    """Brings in all but the last two events, and kills the control plane."""
    with open_log_file(path) as reader:
        events = tuple((one.subject, one.payload) for one in reader.events())
    part = ImportEvents(first=Seq(1), events=events[:-2], total=len(events))
    await client.api.bring_in(part)
    await client.api.bring_in(part)
    plane.kill()
    await plane.start()
    with pytest.raises(Unavailable, match="being brought into"):
        await client.api.move_key("early", "llama@1")
    other = ImportEvents(first=Seq(1), events=events[1:2], total=1)
    with pytest.raises(Conflict, match="is another one"):
        await client.api.bring_in(other)
    no_event = ImportEvents(first=Seq(1), events=((events[0][0], b"{}"),), total=1)
    with pytest.raises(Corrupt, match="cannot be read"):
        await client.api.bring_in(no_event)


@pytest.mark.slow
async def test_a_log_is_brought_into_an_empty_cluster(
    tmp_path, nats_server, other_nats, postgres_server
):
    path = tmp_path / "log.jsonl"
    first = plane_of(tmp_path / "one", nats_server, postgres_server.create_database())
    second = plane_of(tmp_path / "two", other_nats, postgres_server.create_database())
    await first.start()
    try:
        await live(nats_server.url)
        async with client_of(nats_server) as client:
            copied = await client.export_log(path)
            before = await look(client, copied.events)
            assert before[2].ok
            with pytest.raises(Conflict, match="not empty: its log has"):
                await client.import_log(path)
            raw = ImportEvents(first=Seq(copied.events + 1), events=(("x", b""),), total=9)
            with pytest.raises(InvalidArgument, match="no subject"):
                await client.api.bring_in(raw)
            with open_log_file(path) as reader:
                again = next(iter(reader.events()))
            raw = ImportEvents(first=raw.first, events=((again.subject, again.payload),), total=9)
            with pytest.raises(Conflict, match="not empty"):
                await client.api.bring_in(raw)
            await client.export_log(tmp_path / "part", first=2)
    finally:
        first.end()
    assert verify_log_file(path, keys=[(tmp_path / "one/audit/heads.pub").read_text()]).ok
    await second.start()
    try:
        async with client_of(other_nats) as client:
            with pytest.raises(InvalidArgument, match="not a whole log"):
                await client.import_log(tmp_path / "part")
            await break_off(second, client, path)
            told = []
            brought = await client.import_log(path, progress=lambda *done: told.append(done))
            assert brought == copied
            assert told[-1] == (copied.events, copied.events)
            assert await look(client, copied.events) == before
            moved = await client.api.move_key("later", "llama@1")
            assert moved.seq == copied.events + 1  # policies had nothing to add
            with pytest.raises(Conflict, match="not empty"):
                await client.import_log(path)
            heads = tmp_path / "one/audit/heads.ndjson"
            key = (tmp_path / "one/audit/heads.pub").read_text()
            anchored = await client.verify_log(anchors=heads, keys=[key])
            assert (anchored.ok, anchored.anchors) == (True, 1)
    finally:
        second.end()
