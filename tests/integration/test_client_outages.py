"""Questions to a control plane that dies with them in flight, and one that does not answer."""

from __future__ import annotations

import asyncio
import time

import nats
import pytest

from samples import artifact_id
from tensorcast.client.api import ControlPlane
from tensorcast.client.handles import AsyncReplication
from tensorcast.client.position import Position
from tensorcast.schema.api import ReplicasProgress, reply_ok
from tensorcast.schema.errors import InvalidArgument, Timeout, Unavailable
from tensorcast.schema.ids import EventId, NodeId, Tier

DONE = ReplicasProgress(
    done=True, ready=(NodeId("n1"),), operations=(), failed=(), bytes_ready=1, bytes_total=1
)


class Answerer:
    """A control plane that swallows the first `deaf` questions and answers the others."""

    def __init__(self, url: str, *, deaf: int, answer: object = ()) -> None:
        self._url = url
        self._deaf = deaf
        self._answer = reply_ok(answer)
        self.heard: list[str] = []

    async def __aenter__(self) -> Answerer:
        self._nats = await nats.connect(self._url)
        await self._nats.subscribe("tc.*.api.>", cb=self._serve)
        await self._nats.flush()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._nats.close()

    async def _serve(self, message) -> None:
        self.heard.append(message.subject.split(".api.")[1])
        if len(self.heard) > self._deaf:
            await message.respond(self._answer)


@pytest.fixture
async def api(nats_server):
    one = ControlPlane(nats_server.url, "test", "user:ada@here", Position(), timeout_s=2.0)
    yield one
    await one.aclose()


async def test_a_question_is_repeated_within_its_time(nats_server, api):
    async with Answerer(nats_server.url, deaf=1) as controlplane:
        began = time.monotonic()
        assert await api.keys() == ()
        assert time.monotonic() - began < 2.0
    assert controlplane.heard == ["key.list"] * 2


async def test_a_question_waits_for_a_control_plane_that_died_with_it(nats_server, api):
    async def come_back() -> Answerer:
        async with Answerer(nats_server.url, deaf=9):
            await asyncio.sleep(0.5)
        await asyncio.sleep(1.0)
        return await Answerer(nats_server.url, deaf=0).__aenter__()

    coming = asyncio.create_task(come_back())
    await asyncio.sleep(0.2)
    assert await api.keys() == ()
    await (await coming).__aexit__()


async def test_a_change_is_never_repeated(nats_server, api):
    async with Answerer(nats_server.url, deaf=9) as controlplane:
        with pytest.raises(Timeout, match=r"'execute' within 2 s"):
            await api.cordon("n1")
    assert controlplane.heard == ["execute"]


async def test_a_question_that_nobody_answers_ends_in_time(nats_server, api):
    async with Answerer(nats_server.url, deaf=9):
        began = time.monotonic()
        with pytest.raises(Timeout, match=r"'status' within 0\.6 s"):
            await api.status(timeout=0.6)
        assert time.monotonic() - began < 1.5


async def test_an_absent_control_plane_is_told_at_once(api):
    began = time.monotonic()
    with pytest.raises(Unavailable, match="not running"):
        await api.keys()
    assert time.monotonic() - began < 1


async def test_a_wait_outlives_a_control_plane_that_dies_with_it(nats_server, api, monkeypatch):
    monkeypatch.setattr("tensorcast.client.handles.WAIT_S", 0.1)
    monkeypatch.setattr("tensorcast.client.api.ANSWER_SLACK_S", 0.4)
    replication = AsyncReplication(
        api, artifact_id("a"), (NodeId("n1"),), Tier.DRAM, EventId("request")
    )
    async with Answerer(nats_server.url, deaf=2, answer=DONE) as controlplane:
        assert await replication.wait(timeout=30) == DONE
    assert controlplane.heard == ["replicas.wait"] * 3


async def test_text_that_has_no_bytes_is_refused(api):
    with pytest.raises(InvalidArgument, match="is not valid text"):
        await api.artifact("a\udcff")
