"""A whole cluster in the lab: real movers on hosts of their own, NATS and a scheduler beside them.
Used by tests and by benchmarks/broadcast.py."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import netlab
from controlplanes import ControlPlane
from mover_nodes import Content, MoverNode, Observer, observing
from servers import NatsServer
from tensorcast.schema.aggregates.replica import ReplicaStatus
from tensorcast.schema.commands import RequestReplicas
from tensorcast.schema.events import OperationSucceeded, ReplicaReady, ReplicasRequested
from tensorcast.schema.ids import ArtifactId, NodeId, Tier, replica_id
from tensorcast.schema.work import Evict

WAIT_S_MAX = 120.0
SERVICES = "scheduler,timers"


class Cluster:
    """Movers on the hosts of a lab, a NATS server and a scheduler on the machine."""

    def __init__(
        self,
        lab: netlab.Lab,
        folder: Path,
        observer: Observer,
        nats: NatsServer,
        controlplane: ControlPlane,
    ) -> None:
        self.lab = lab
        self.observer = observer
        self.nats = nats
        self.controlplane = controlplane
        self.movers: dict[str, MoverNode] = {}
        self._folder = folder
        self.nats_url = nats.url

    def start(self, *hosts: str, dram_bytes: int, **environ: str) -> None:
        """Starts a mover on each host; waits for all."""
        for host in hosts:
            mover = MoverNode(host, self._folder / host, self.nats_url, **environ)
            mover.prefix = self.lab.enter(host)
            self.movers[host] = mover
            mover.start(
                TENSORCAST_DATA_LISTEN=f"{self.lab.address(host)}:0",
                TENSORCAST_DRAM_BYTES=str(dram_bytes),
                TENSORCAST_HEARTBEAT_S="1",
            )

    def put(self, host: str, content: Content) -> None:
        """Makes the content known, and the host have it."""
        with self.movers[host].application() as application:
            application.put(content)

    def read(self, host: str, content: Content) -> bool:
        """Whether what the host has is the content, bit for bit."""
        with (
            self.movers[host].application() as application,
            application.get(content.id) as reading,
        ):
            return reading.bytes() == content.bytes

    async def replicate(self, content: Content, *hosts: str) -> float:
        """The seconds until all hosts have it."""
        await self.request(content, *hosts)
        return await self.took(content, *hosts)

    async def request(self, content: Content, *hosts: str) -> None:
        """Asks for replicas."""
        nodes = tuple(map(NodeId, hosts))
        await self.observer.execute(RequestReplicas(artifact=content.id, nodes=nodes))

    async def took(self, content: Content, *hosts: str) -> float:
        """Waits until all hosts have it; the seconds since they were asked last, by the log."""
        names = [replica_id(content.id, NodeId(host), Tier.DRAM) for host in hosts]
        await self.observer.until(
            lambda view: all(
                name in view.replicas and view.replicas[name].status is ReplicaStatus.READY
                for name in names
            ),
            WAIT_S_MAX,
        )
        asked_at = ready_at = None
        for recorded in await self.observer.events():
            if isinstance(recorded.event, ReplicasRequested):
                asked_at = recorded.at
            if isinstance(recorded.event, ReplicaReady) and recorded.event.replica in names:
                ready_at = recorded.at
        assert asked_at is not None
        assert ready_at is not None
        return (ready_at - asked_at).total_seconds()

    async def tries(self, host: str) -> list[tuple[int, str]]:
        """The tries and the end of each operation of a host; waits until all have ended."""
        view = await self.observer.until(
            lambda view: all(view.operations[o].node != host for o in view.open_operations)
        )
        found = (o for o in view.operations.values() if o.node == host)
        return [(operation.attempt, operation.status) for operation in found]

    async def received(self, host: str, content: Content, share: float) -> None:
        """Waits until the host's card has received this share of the content's bytes."""
        until_bytes = self.lab.received_bytes(host) + content.manifest.size_bytes * share
        async with asyncio.timeout(WAIT_S_MAX):
            while self.lab.received_bytes(host) < until_bytes:  # noqa: ASYNC110  (a counter)
                await asyncio.sleep(0.01)

    async def forget(self, content: Content, *hosts: str) -> None:
        """Drops the replicas on these hosts again."""
        await self.evict(content.id, *hosts)

    async def evict(self, artifact: ArtifactId, *hosts: str) -> None:
        """Drops the replicas of an artifact on these hosts."""
        work = Evict(artifact=artifact, tier=Tier.DRAM, reason="benchmark")
        issued = [await self.observer.issue(host, work) for host in hosts]
        for operation in issued:
            await self.observer.succeeded(operation)

    async def moved_bytes(self, host: str) -> int:
        """What the host's successful operations moved."""
        view = await self.observer.view()
        return sum(
            recorded.event.bytes_moved
            for recorded in await self.observer.events()
            if isinstance(recorded.event, OperationSucceeded)
            and view.operations[recorded.event.operation].node == host
        )


@contextmanager
def _nats(folder: Path) -> Iterator[NatsServer]:
    folder.mkdir()
    server = NatsServer(folder)
    # A benchmark's event loop stands still while it waits for an engine: it is not gone.
    config = folder / "nats.conf"
    config.write_text(config.read_text().replace('ping_interval: "3s"', 'ping_interval: "2m"'))
    server.start()
    try:
        yield server
    finally:
        server.stop()


@asynccontextmanager
async def cluster(
    *hosts: str,
    rate: str | None = "1gbit",
    far: tuple[str, ...] = (),
    services: str = SERVICES,
    postgres_url: str = "",
) -> AsyncIterator[Cluster]:
    """A cluster whose movers are started by the caller; everything ends with the context."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tc-lab-")))
        nats = stack.enter_context(_nats(folder / "nats"))
        lab = stack.enter_context(netlab.lab(*hosts, rate=rate, far=far))
        lab.expose(nats.port)
        controlplane = ControlPlane(folder, nats.url, postgres_url)
        stack.callback(controlplane.end)
        await controlplane.start(services)
        async with observing(nats.url) as observer:
            made = Cluster(lab, folder, observer, nats, controlplane)
            try:
                yield made
            finally:
                for mover in made.movers.values():
                    mover.close()
