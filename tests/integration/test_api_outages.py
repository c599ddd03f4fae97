"""The control plane when its servers are not there yet, or not any more."""

from __future__ import annotations

import asyncio

import pytest

from controlplanes import ControlPlane, open_hand
from tensorcast.schema import api, commands
from tensorcast.schema.errors import TensorCastError, Unavailable
from tensorcast.schema.ids import Key, Seq

pytestmark = pytest.mark.slow


@pytest.fixture
def plane(tmp_path, nats_server, postgres_url):
    plane = ControlPlane(tmp_path, nats_server.url, postgres_url)
    yield plane
    plane.end()


async def test_it_waits_for_a_nats_server_that_is_late(plane, nats_server):
    nats_server.kill()
    starting = asyncio.ensure_future(plane.start())
    for _ in range(200):
        await asyncio.sleep(0.1)
        if "waiting for NATS" in plane.log_text():
            break
    assert "waiting for NATS" in plane.log_text()
    assert not starting.done()
    nats_server.start()
    await starting
    async with open_hand(nats_server.url) as hand:
        status = await hand.ask("status", api.Ask(), api.ClusterStatus)
        assert status.problems == ()


async def test_without_postgres_all_but_history_goes_on(plane, nats_server, postgres_server):
    await plane.start()
    async with open_hand(nats_server.url) as hand:
        await hand.join("n1")
        artifact = await hand.put("a", "n1")
        postgres_server.kill()
        await hand.run(commands.MoveKey(key=Key("k"), artifact=artifact))
        shown = await hand.ask("artifact.show", api.Show(what="k"), api.ArtifactInfo)
        assert shown.keys == ("k",)
        with pytest.raises(Unavailable, match="Postgres"):
            await hand.ask("audit.log", api.AuditQuery(), object)
        status = await hand.ask("status", api.Ask(), api.ClusterStatus)
        assert any("Postgres" in problem for problem in status.problems)
        # Asked before: while it starts nobody here answers NATS, which may give the connection up.
        query = api.AuditQuery(what="k", after=await hand.log.last_seq())
        postgres_server.start()
        (moved,) = await _patiently(hand, query)
        assert moved.type == "key.moved"
    assert plane.process is not None
    assert plane.process.poll() is None, "it rode it out"


async def _patiently(hand, query):
    for _ in range(40):
        try:
            # One that was asked while the connection was given up has no answer.
            return await hand.ask("audit.log", query, tuple[api.EventInfo, ...], timeout_s=5)
        except (TensorCastError, TimeoutError):
            await asyncio.sleep(0.25)
    raise AssertionError("the history did not come back")


async def test_a_nats_server_that_comes_back_finds_everybody(plane, nats_server):
    await plane.start()
    async with open_hand(nats_server.url) as hand:
        await hand.join("n1")
        nats_server.kill()
        await asyncio.sleep(1.0)
        nats_server.start()
        artifact = await _surely_put(hand)
        done = await hand.run(commands.MoveKey(key=Key("k"), artifact=artifact))
        audit = api.AuditQuery(what="k", after=done.seq)
        assert len(await _patiently(hand, audit)) == 1
        node = await hand.ask("node.show", api.Show(what="n1"), api.NodeInfo)
        assert node.state == "up", "nobody could be heard while NATS was away"


async def _surely_put(hand):
    for _ in range(40):
        try:
            return await hand.put("a", "n1")
        except TensorCastError:
            await asyncio.sleep(0.25)
    raise AssertionError("the log did not come back")


async def test_a_log_that_was_made_anew_is_filled_from_postgres_before_anything_serves(
    plane, nats_server, postgres_url
):
    await plane.start()
    async with open_hand(nats_server.url) as hand:
        await hand.join("n1", "n2")
        await hand.ask("audit.log", api.AuditQuery(after=Seq(2)), object)  # Postgres has them
    assert plane.end() == 0
    nats_server.kill()
    nats_server.forget()
    nats_server.start()
    await plane.start()
    async with open_hand(nats_server.url) as hand:
        events = await hand.ask(
            "audit.log", api.AuditQuery(after=Seq(3)), tuple[api.EventInfo, ...]
        )
        assert [event.type for event in events[:2]] == ["node.joined"] * 2
        assert b"tensorcast.log.restored" in bytes(events[2].data)
        assert await hand.log.last_seq() >= 3
    assert "Traceback" not in plane.log_text()
