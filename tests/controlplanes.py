"""Control planes as processes, on real servers, and a cluster that is written by hand."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec
from nats.errors import NoRespondersError

from samples import artifact_id, manifest
from tensorcast.log.execute import execute
from tensorcast.log.follower import Follower
from tensorcast.log.jetstream import JetStreamLog, connect_log
from tensorcast.schema import subjects
from tensorcast.schema.api import Execute, Executed, parse_reply
from tensorcast.schema.commands import Command, CompleteReplica, JoinNode, SealArtifact
from tensorcast.schema.ids import ArtifactId, Epoch, NodeId, Tier, replica_id

CLUSTER = "test"
START_S_MAX = 40.0
STOP_S_MAX = 5.0


class ControlPlane:
    """One process; its standard error goes to a file."""

    def __init__(self, folder: Path, nats_url: str, postgres_url: str, **environ: str) -> None:
        self._log = folder / f"controlplane-{id(self)}.log"
        self._environ = {
            **os.environ,
            "TENSORCAST_CLUSTER": CLUSTER,
            "TENSORCAST_NATS_URL": nats_url,
            "TENSORCAST_POSTGRES_URL": postgres_url,
            **environ,
        }
        self.process: subprocess.Popen[bytes] | None = None

    async def start(self, services: str = "persister,scheduler,timers,api") -> None:
        """Starts it and waits until it serves."""
        self.launch(services)
        assert self.process is not None
        async with asyncio.timeout(START_S_MAX):
            while "serving cluster" not in self.log_text():
                assert self.process.poll() is None, self.log_text()
                await asyncio.sleep(0.05)

    def launch(self, services: str) -> None:
        """Starts it and does not wait."""
        command = [sys.executable, "-m", "tensorcast.controlplane.main", "--services", services]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(command, env=self._environ, stderr=log)

    def kill(self) -> None:
        """As a crash."""
        self.end(signal.SIGKILL)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal; returns the exit status."""
        process, self.process = self.process, None
        if process is None:
            return 0
        process.send_signal(number)
        try:
            return process.wait(STOP_S_MAX)
        finally:
            process.kill()
            process.wait()

    def log_text(self) -> str:
        return self._log.read_text()


class Hand:
    """Writes to the log of a cluster as movers do, and asks the control plane as users do."""

    def __init__(self, log: JetStreamLog, follower: Follower) -> None:
        self.log = log
        self.follower = follower

    @property
    def view(self):
        return self.follower.view

    async def write(self, *commands: Command):
        return await execute(self.log, self.follower, commands, actor="mover:test")

    async def join(self, *names: str, epoch: int = 1) -> None:
        for name in names:
            await self.write(
                JoinNode(
                    node=NodeId(name),
                    epoch=Epoch(epoch),
                    address="127.0.0.1:1",
                    tiers={Tier.DRAM: 1 << 30, Tier.DISK: 1 << 30},
                    transports=("tcp",),
                )
            )

    async def put(self, name: str, node: str) -> ArtifactId:
        artifact = artifact_id(name)
        await self.write(
            SealArtifact(artifact=artifact, kind="weights", manifest=manifest()),
            CompleteReplica(
                replica=replica_id(artifact, NodeId(node), Tier.DRAM),
                artifact=artifact,
                node=NodeId(node),
                tier=Tier.DRAM,
                epoch=Epoch(1),
                chunks_total=4,
            ),
        )
        return artifact

    async def ask(self, verb: str, request, shape, *, timeout_s: float = 30.0):
        """The answer; asks again while no control plane listens."""
        payload = request if isinstance(request, bytes) else msgspec.json.encode(request)
        subject = subjects.api_subject(CLUSTER, verb)
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    reply = await self.log.nats.request(subject, payload, timeout=timeout_s)
                    return parse_reply(reply.data, shape)
                except NoRespondersError:
                    await asyncio.sleep(0.1)

    async def run(self, command: Command, *, force: bool = False) -> Executed:
        request = Execute(command=command, actor="user:ada@desk", force=force)
        return await self.ask("execute", request, Executed)

    async def until(self, predicate, timeout_s: float = 20.0):
        return await self.follower.wait_until(predicate, timeout_s)


@asynccontextmanager
async def open_hand(nats_url: str) -> AsyncIterator[Hand]:
    """A hand, until the block ends."""
    log = await connect_log(nats_url, CLUSTER, name="test")
    follower = Follower(log)
    running = asyncio.get_running_loop().create_task(follower.run())
    try:
        yield Hand(log, follower)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await log.aclose()


@contextmanager
def scheduling(nats_url: str, log: Path) -> Iterator[None]:
    """The policies, without a database."""
    environ = {
        "PATH": os.environ["PATH"],
        "TENSORCAST_CLUSTER": CLUSTER,
        "TENSORCAST_NATS_URL": nats_url,
    }
    command = [sys.executable, "-m", "tensorcast.controlplane.main", "--services", "scheduler"]
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=environ, stderr=out)
    try:
        yield
    finally:
        process.kill()
        process.wait()
