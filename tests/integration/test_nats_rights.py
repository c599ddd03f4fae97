"""What each key may do, asked of a real nats-server: what is not allowed is refused."""

from __future__ import annotations

import asyncio

import pytest

from keyed_servers import CLUSTER, Keyed, user
from samples import artifact_id
from tensorcast.deploy import keys, rotation
from tensorcast.log.blocks import JetStreamBlocks
from tensorcast.log.identity import new_event_id, now
from tensorcast.log.jetstream import JetStreamLog, connect_log
from tensorcast.schema import subjects
from tensorcast.schema.access import Access
from tensorcast.schema.envelope import Draft
from tensorcast.schema.errors import PermissionDenied, Unavailable
from tensorcast.schema.events import ArtifactPinned, NodeCordoned, SignalEmitted
from tensorcast.schema.ids import NodeId, Seq
from tensorcast.schema.signals import Topic

LOG = subjects.log_name(CLUSTER)


@pytest.fixture
def server(tmp_path):
    made = Keyed(tmp_path)
    made.start()
    yield made
    made.stop()


def draft(event, actor="test") -> Draft:
    return Draft(id=new_event_id(), at=now(), actor=actor, event=event, expected=None)


async def refused(log: JetStreamLog, subject: str, payload: bytes = b"") -> None:
    """Sends as this key and sees that the server refuses it, with a word and no wait."""
    async with asyncio.timeout(5):
        with pytest.raises(PermissionDenied, match="does not let this process"):
            await log.connection.ask(subject, payload)


async def test_the_processes_do_their_work_with_the_rights_that_they_have(server):
    with pytest.raises(Unavailable, match="not there yet"):
        async with server.log("mover.n1"):
            pass
    async with server.log("controlplane") as log:
        await JetStreamBlocks(log.connection, CLUSTER).reach()
        await log.append([draft(NodeCordoned(node=NodeId("n1"))), draft(pinned("a"))])
        async with server.log("mover.n1") as mover:
            await mover.append([draft(pinned("b")), draft(pinned("c"))])
            await mover.append([draft(SignalEmitted(topic=Topic("security.ticket"), data={}))])
            async for batch in mover.read(after=Seq(0)):
                if batch[-1].seq == 5:
                    break
            assert await JetStreamBlocks(mover.connection, CLUSTER).last_cleared(NodeId("n1")) == 0
    assert "Violation" not in server.log_text()


def pinned(name: str) -> ArtifactPinned:
    return ArtifactPinned(artifact=artifact_id(name))


async def test_who_has_no_key_or_another_ones_is_not_let_in(server, tmp_path):
    with pytest.raises(PermissionDenied, match="password or key"):
        await connect_log(server.url, CLUSTER, name="nobody", timeout_s=3)
    stranger = tmp_path / "stranger.nk"
    stranger.write_text(keys.draw_key().seed)
    access = Access(credentials=str(stranger), identity="mover.n1")
    with pytest.raises(PermissionDenied):
        await connect_log(server.url, CLUSTER, name="n1", access=access, timeout_s=3)


async def test_a_mover_neither_deletes_nor_speaks_for_another_node(server):
    async with server.log("controlplane"), server.log("mover.n1") as mover:
        for verb in ("PURGE", "DELETE", "UPDATE", "MSG.DELETE"):
            await refused(mover, f"$JS.API.STREAM.{verb}.{LOG}", b"{}")
        await refused(mover, f"$JS.API.CONSUMER.DELETE.{LOG}.signals_x")
        with pytest.raises(PermissionDenied):
            await mover.append([draft(NodeCordoned(node=NodeId("n2")))])
        await refused(mover, subjects.kv_changed(CLUSTER, NodeId("n2")))
        await refused(mover, subjects.heartbeat(CLUSTER, NodeId("n2")))
        await refused(mover, subjects.user_subject(CLUSTER, "ada", "execute"))
        assert await mover.last_seq() == 0


async def test_the_control_plane_deletes_nothing_either(server):
    async with server.log("controlplane") as log:
        for verb in ("PURGE", "DELETE", "UPDATE", "MSG.DELETE"):
            await refused(log, f"$JS.API.STREAM.{verb}.{LOG}", b"{}")


@pytest.mark.parametrize("own", [True, False])
async def test_a_user_writes_to_no_log_and_asks_in_no_other_name(server, own):
    me = f"user.{keys.own_name()}" if own else "user.bob"
    async with server.log("controlplane") as log, user(server, me) as api:
        nats = await api.connect()
        told: asyncio.Queue[Exception] = asyncio.Queue()
        nats._error_cb = told.put
        forbidden = [
            subjects.subject_of(CLUSTER, pinned("a")),
            subjects.api_subject(CLUSTER, "execute"),
            subjects.user_subject(CLUSTER, "eve", "status"),
            f"$JS.API.STREAM.PURGE.{LOG}",
            f"$JS.API.CONSUMER.CREATE.{LOG}.x",
            subjects.heartbeat(CLUSTER, NodeId("n1")),
            *([] if own else [subjects.user_subject(CLUSTER, "bob", "execute")]),
        ]
        for subject in forbidden:
            await nats.publish(subject, b"{}")
        await nats.subscribe("_INBOX.controlplane.>")
        await nats.subscribe("tc.>")
        async with asyncio.timeout(5):
            for _ in range(len(forbidden) + 2):
                assert "permissions violation" in str(await told.get()).lower()
        assert await log.last_seq() == 0


async def test_a_reader_that_commands_is_told_at_once(server):
    async with user(server, "user.bob") as api, asyncio.timeout(5):
        with pytest.raises(PermissionDenied, match="does not allow"):
            await api.cordon("n1")


async def test_a_rotation_under_load_loses_nothing(server):
    """Two writers append while every key is replaced: all that was acknowledged is there, and no
    append fails."""
    chosen = keys.choose(server.config, None)
    async with server.log("controlplane") as log, server.log("mover.n1") as mover:
        ended = asyncio.Event()

        async def write(to: JetStreamLog, word: str) -> int:
            count = 0
            while not ended.is_set():
                await to.append([draft(pinned(f"{word}{count}"))])
                count += 1
            return count

        writing = [asyncio.create_task(write(*pair)) for pair in ((log, "a"), (mover, "b"))]
        changed = await asyncio.to_thread(
            rotation.rotate, server.layout, server.config, chosen, server.pid, lambda _: None
        )
        ended.set()
        counts = [await task for task in writing]
        assert min(counts) > 0
        assert await log.last_seq() == sum(counts)
    assert {one.public for one in changed.nats.identities}.isdisjoint(one.public for one in chosen)
