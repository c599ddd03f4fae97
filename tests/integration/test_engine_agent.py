"""The agent beside a pretended engine (a real publisher, a real HTTP server), with real NATS,
Postgres and control plane: what the cluster knows of the engine's blocks and load."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import msgspec
import pytest

import tensorcast as tc
from controlplanes import CLUSTER, ControlPlane
from kv_publishers import CLEARED, Publisher, removed, stored, tokens
from tensorcast.client import Context

PATIENCE_S = 20.0
METRICS = """\
vllm:num_requests_running{{engine="0",model_name="tiny"}} {running}
vllm:num_requests_waiting{{engine="0",model_name="tiny"}} 0.0
vllm:kv_cache_usage_perc{{engine="0",model_name="tiny"}} 0.5
"""


class Engine:
    """Answers what the agent asks of a vLLM server."""

    def __init__(self, publisher: Publisher) -> None:
        self.publisher = publisher
        self.running = 1.0
        self.url = ""
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.url = f"http://{host}:{port}"

    async def stop(self) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader, writer) -> None:
        path = (await reader.readline()).split()[1].decode()
        while (await reader.readline()).strip():
            pass
        body = self._page(path)
        status = b"404 Not Found" if body is None else b"200 OK"
        body = body or b""
        head = b"HTTP/1.1 %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
        writer.write(head % (status, len(body)) + body)
        await writer.drain()
        writer.close()

    def _page(self, path: str) -> bytes | None:
        sources = {
            "0": {"endpoint": self.publisher.events, "replay_endpoint": self.publisher.replay}
        }
        pages = {
            "/health": b"",
            "/metrics": METRICS.format(running=self.running).encode(),
            "/v1/models": b'{"data": [{"id": "tiny"}]}',
            "/kv_event_sources": msgspec.json.encode(sources),
        }
        return pages.get(path)


@pytest.fixture
async def plane(tmp_path, nats_server, postgres_url):
    plane = ControlPlane(tmp_path, nats_server.url, postgres_url)
    await plane.start()
    yield plane
    plane.end()


@pytest.fixture
async def engine(tmp_path):
    publisher = Publisher(tmp_path, keeps=50)
    serving = asyncio.create_task(publisher.serve())
    engine = Engine(publisher)
    await engine.start()
    yield engine
    await engine.stop()
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    publisher.close()


class Agent:
    def __init__(self, folder, nats_url: str, engine: Engine) -> None:
        self._log = folder / "agent.log"
        environ = {
            **os.environ,
            "TENSORCAST_NATS_URL": nats_url,
            "TENSORCAST_CLUSTER": CLUSTER,
            "TENSORCAST_CONFIG_DIR": str(folder),
        }
        command = [sys.executable, "-m", "tensorcast.engines.vllm.agent", engine.url]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--engine", "e1", "--period", "0.2"], env=environ, stderr=log
            )

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        try:
            return self.process.wait(10)
        finally:
            self.process.kill()
            self.process.wait()

    def log_text(self) -> str:
        return self._log.read_text()[-3000:]


@pytest.fixture
def start_agent(tmp_path, nats_server, engine):
    agents = []

    def start() -> Agent:
        agents.append(Agent(tmp_path, nats_server.url, engine))
        return agents[-1]

    yield start
    for agent in agents:
        if agent.process.poll() is None:
            agent.end()


async def until(client, prompt, expected):
    """Waits until the holders of a prompt are as expected: (engine, tokens, state)."""
    found = None
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                holders = await client.api.holders(prompt)
                found = [(one.engine, one.tokens, one.state) for one in holders]
                if found == expected:
                    return
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(found) from None


async def view_of(client, state):
    async with asyncio.timeout(PATIENCE_S):
        while True:
            for view in await client.api.engine_views():
                if view.state == state:
                    return view
            await asyncio.sleep(0.05)


async def test_the_cluster_knows_who_holds_which_prefix(plane, nats_server, engine, start_agent):
    prompt = tokens(1, 5)
    await engine.publisher.publish(stored(1, 2), lost=True)
    context = Context(cluster=CLUSTER, nats_url=nats_server.url)
    async with tc.connect_async(context) as client, client.signals("engine.load.>") as signals:
        agent = start_agent()
        await until(client, prompt, [("e1", 8, "exact")])
        await engine.publisher.publish(stored(3, 3, parent=2))
        await until(client, prompt, [("e1", 20, "exact")])
        await until(client, prompt[:11], [("e1", 8, "exact")])
        await until(client, [9, *prompt], [])
        await engine.publisher.publish(removed(4))
        await until(client, prompt, [("e1", 12, "exact")])

        signal_ = await signals.next(PATIENCE_S)
        assert signal_.topic == "engine.load.e1"
        assert signal_.data["running"] == 1
        assert signal_.data["blocks_state"] == "exact"
        (topic,) = await client.api.topics("engine.load.*")
        assert topic.data["engine"] == "e1"
        info = await client.api.engine("e1")
        assert (info.state, info.model, info.url) == ("up", "tiny", engine.url)
        view = await view_of(client, "exact")
        assert (view.engine, view.blocks, view.block_tokens) == ("e1", 4, (4,))
        assert view.heard_at is not None

        assert agent.end() == 0, agent.log_text()
        assert "Traceback" not in agent.log_text()


async def test_an_agent_that_is_killed_is_followed_by_the_next(
    plane, nats_server, engine, start_agent
):
    prompt = tokens(1, 3)
    context = Context(cluster=CLUSTER, nats_url=nats_server.url)
    async with tc.connect_async(context) as client:
        agent = start_agent()
        await engine.publisher.publish(stored(1, 2))
        await until(client, prompt, [("e1", 8, "exact")])
        agent.end(signal.SIGKILL)
        await engine.publisher.publish(removed(2))
        await engine.publisher.publish(stored(7, 1))
        start_agent()
        await until(client, prompt, [("e1", 4, "exact")])
        await until(client, tokens(7, 1), [("e1", 4, "exact")])


async def test_control_planes_and_servers_may_die_meanwhile(
    plane, nats_server, engine, start_agent
):
    prompt = tokens(1, 6)
    context = Context(cluster=CLUSTER, nats_url=nats_server.url)
    async with tc.connect_async(context) as client:
        start_agent()
        await engine.publisher.publish(stored(1, 1))
        await until(client, prompt, [("e1", 4, "exact")])
        plane.kill()
        await engine.publisher.publish(stored(2, 1, parent=1))
        await asyncio.sleep(0.3)
        await plane.start()
        await until(client, prompt, [("e1", 8, "exact")])
        nats_server.kill()
        await engine.publisher.publish(stored(3, 1, parent=2))
        await asyncio.sleep(0.3)
        nats_server.start()
        await engine.publisher.publish(stored(4, 1, parent=3))
        await _until_surely(client, prompt, [("e1", 16, "exact")])
        await engine.publisher.publish(CLEARED)
        await _until_surely(client, prompt, [])


async def _until_surely(client, prompt, expected):
    async with asyncio.timeout(3 * PATIENCE_S):
        while True:
            try:
                return await until(client, prompt, expected)
            except (tc.Unavailable, tc.Timeout):
                await asyncio.sleep(0.2)


@pytest.mark.slow
async def test_of_two_agents_the_later_one_counts_and_the_other_ends(
    plane, nats_server, engine, start_agent
):
    context = Context(cluster=CLUSTER, nats_url=nats_server.url)
    async with tc.connect_async(context) as client:
        first = start_agent()
        await engine.publisher.publish(stored(1, 1))
        await until(client, tokens(1, 1), [("e1", 4, "exact")])
        start_agent()
        assert await asyncio.to_thread(first.process.wait, PATIENCE_S) == 4  # a conflict
        assert "Another watcher tells of e1 now" in first.log_text()
        await engine.publisher.publish(stored(2, 1, parent=1))
        await until(client, tokens(1, 2), [("e1", 8, "exact")])


async def test_what_cannot_be_known_is_said(plane, nats_server, engine, start_agent):
    for number in range(60):  # the engine keeps fifty
        await engine.publisher.publish(stored(number, 1), lost=True)
    context = Context(cluster=CLUSTER, nats_url=nats_server.url)
    async with tc.connect_async(context) as client:
        start_agent()
        view = await view_of(client, "partial")
        assert "Batches 0 to 9 are lost" in view.reason
        await until(client, tokens(15, 1), [("e1", 4, "partial")])
        await until(client, tokens(5, 1), [])
        await engine.publisher.publish(CLEARED)
        await engine.publisher.publish(stored(70, 1))
        await until(client, tokens(70, 1), [("e1", 4, "exact")])
