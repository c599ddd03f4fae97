"""A whole cluster in one process and in virtual time: a seed decides all that happens in it."""

from __future__ import annotations

import asyncio
from random import Random

from rigs import fold, read_all
from samples import MIB, artifact_id, manifest
from simulation.network import FarLog
from simulation.processes import Mover, Process, start_scheduler
from tensorcast.log.memory import MemoryCursors, MemoryLog
from tensorcast.schema.commands import (
    AcquireLease,
    CompleteReplica,
    CordonNode,
    DrainNode,
    LoseNode,
    PinArtifact,
    ReleaseLease,
    RemoveArtifact,
    RequestReplicas,
    RequestVerification,
    SealArtifact,
    UncordonNode,
    UnpinArtifact,
)
from tensorcast.schema.errors import TensorCastError
from tensorcast.schema.ids import ArtifactId, LeaseId, NodeId, Tier, replica_id

ARTIFACT_CHUNKS = 4
HOLD_S_MAX = 40.0


class SimulatedCluster:
    """Nodes, schedulers and a user, all killed and started at random until `settle`."""

    def __init__(self, seed: int, *, nodes: int = 3, schedulers: int = 2, room: int = 3) -> None:
        self.random = Random(seed)
        self.log = MemoryLog()
        self.cursors = MemoryCursors()
        self.is_calm = False
        self.nodes = [NodeId(f"n{number}") for number in range(1, nodes + 1)]
        self._dram_bytes = room * ARTIFACT_CHUNKS * MIB
        self._epochs = dict.fromkeys(self.nodes, 0)
        self._movers: dict[NodeId, Mover] = {}
        self._schedulers = [start_scheduler(self._far(), self.cursors) for _ in range(schedulers)]
        self.user = Process(self._far())
        self.user.start(asyncio.Event().wait)
        self._leases = 0
        self._claims: list[asyncio.Task[None]] = []

    def _far(self) -> FarLog:
        return FarLog(self.log, self.random, delay_s=0.1, loss=0.05)

    # ---- machines ----------------------------------------------------------------------------

    def start_mover(self, node: NodeId, *, lost: float = 0.3) -> None:
        self._epochs[node] += 1
        mover = Mover(
            self._far(),
            node,
            self.random,
            epoch=self._epochs[node],
            dram_bytes=self._dram_bytes,
            faults=lambda: 0.0 if self.is_calm else 0.2,
        )
        self._movers[node] = mover
        mover.start(lambda: mover.live(lost=lost))

    async def crash_mover(self, node: NodeId) -> None:
        """The mover dies; sometimes it is away for so long that the node is lost."""
        await self._movers.pop(node).kill()
        if self.random.random() < 0.5:
            known = self.user.view.nodes.get(node)
            if known is not None:
                await self.try_to(LoseNode(node=node, epoch=known.epoch, silent_s=5.0))
            await asyncio.sleep(self.random.random() * 10)
        self.start_mover(node)

    async def crash_scheduler(self) -> None:
        place = self.random.randrange(len(self._schedulers))
        await self._schedulers[place].kill()
        await asyncio.sleep(self.random.random() * 3)
        self._schedulers[place] = start_scheduler(self._far(), self.cursors)

    # ---- the user ----------------------------------------------------------------------------

    async def try_to(self, *commands) -> None:
        """What the cluster refuses is not done."""
        try:
            await self.user.execute(*commands)
        except TensorCastError:
            return

    async def put(self, name: str) -> None:
        """A new artifact on a node that is up."""
        node = self.random.choice(self.nodes)
        known = self.user.view.nodes.get(node)
        if known is None or known.status.value != "up":
            return
        artifact = artifact_id(name)
        await self.try_to(
            SealArtifact(artifact=artifact, kind="weights", manifest=manifest(ARTIFACT_CHUNKS)),
            CompleteReplica(
                replica=replica_id(artifact, node, Tier.DRAM),
                artifact=artifact,
                node=node,
                tier=Tier.DRAM,
                epoch=known.epoch,
                chunks_total=ARTIFACT_CHUNKS,
            ),
        )

    async def act(self, step: int) -> None:
        """One thing that a user, an operator or fate does."""
        choices = [self._request, self._request, self._verify, self._operate]
        fate = self.random.random()
        if fate < 0.3:
            await self.put(f"a{step}")
        elif fate < 0.4:
            await self.crash_mover(self.random.choice(self.nodes))
        elif fate < 0.45:
            await self.crash_scheduler()
        elif self.user.view.artifacts:
            artifact = self.random.choice(sorted(self.user.view.artifacts))
            if self.random.random() < 0.3:
                claim = self._claim(artifact)
                self._claims.append(asyncio.get_running_loop().create_task(claim))
            else:
                await self.random.choice(choices)(artifact)

    async def _request(self, artifact: ArtifactId) -> None:
        count = self.random.randint(1, len(self.nodes))
        nodes = tuple(self.random.sample(self.nodes, count))
        tier = self.random.choice([Tier.DRAM, Tier.DRAM, Tier.DISK])
        await self.try_to(RequestReplicas(artifact=artifact, nodes=nodes, tier=tier))

    async def _claim(self, artifact: ArtifactId) -> None:
        """Pins or leases the artifact for a while, beside all else that happens."""
        if self.random.random() < 0.3:
            await self.try_to(PinArtifact(artifact=artifact))
            await asyncio.sleep(self.random.random() * HOLD_S_MAX)
            await self.try_to(UnpinArtifact(artifact=artifact))
            return
        self._leases += 1
        lease = LeaseId(f"l{self._leases}")
        node = self.random.choice([None, *self.nodes])
        await self.try_to(
            AcquireLease(lease=lease, artifact=artifact, node=node, holder="me", ttl_s=60)
        )
        await asyncio.sleep(self.random.random() * HOLD_S_MAX)
        await self.try_to(ReleaseLease(lease=lease))

    async def _verify(self, artifact: ArtifactId) -> None:
        replicas = tuple(sorted(self.user.view.replicas_by_artifact.get(artifact, ())))
        await self.try_to(RequestVerification(artifact=artifact, replicas=replicas))

    async def _operate(self, artifact: ArtifactId) -> None:
        node = self.random.choice(self.nodes)
        command = self.random.choice(
            [
                RemoveArtifact(artifact=artifact),
                CordonNode(node=node),
                DrainNode(node=node),
                UncordonNode(node=node),
                UncordonNode(node=node),
            ]
        )
        await self.try_to(command)

    # ---- the run -----------------------------------------------------------------------------

    async def run(self, steps: int) -> None:
        """Chaos, then calm; then all that was asked for has had its chance."""
        for node in self.nodes:
            self.start_mover(node, lost=0.0)
        for step in range(steps):
            await asyncio.sleep(self.random.random() * 2)
            await self.act(step)
        await self.settle()

    async def settle(self) -> None:
        """Nothing fails any more, every node is open, has room and has just joined."""
        await asyncio.gather(*self._claims)
        await asyncio.sleep(60)
        self.is_calm = True
        self._dram_bytes = 1 << 40
        for node in self.nodes:
            await self._movers[node].kill()
            self.start_mover(node, lost=0.0)
        for node in self.nodes:
            while self.user.view.nodes[node].cordoned:
                await self.try_to(UncordonNode(node=node))
        await asyncio.sleep(120)

    async def stop(self) -> None:
        """Kills everybody; raises what broke one of them before."""
        for claim in self._claims:
            claim.cancel()
        for process in (*self._movers.values(), *self._schedulers, self.user):
            await process.kill()

    async def history(self):
        return await read_all(self.log)

    async def view(self):
        return fold(await self.history())
