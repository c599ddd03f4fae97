"""The node in the cluster: it joins, tells that it lives, joins again when given up, leaves."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final

import msgspec
from nats.errors import Error as NatsError

from tensorcast.log.execute import execute
from tensorcast.log.follower import Follower
from tensorcast.log.jetstream import JetStreamLog
from tensorcast.log.writer import Writer
from tensorcast.movers.disk_room import DiskRoom
from tensorcast.movers.doors import Seal
from tensorcast.movers.journal import Journal, LastLife
from tensorcast.movers.memory.cuda import CudaPool
from tensorcast.movers.memory.pool import Pool
from tensorcast.movers.peers import Peers
from tensorcast.movers.reports import Life, Reporter
from tensorcast.movers.settings import Settings
from tensorcast.schema import subjects
from tensorcast.schema.aggregates.node import NodeStatus
from tensorcast.schema.commands import JoinNode, LeaveNode
from tensorcast.schema.errors import Rejected, Unavailable
from tensorcast.schema.ids import Epoch, Tier
from tensorcast.schema.tensors import SIZE_BYTES_MAX

JOINS_MAX: Final = 3
_EVERYWHERE: Final = frozenset({"0.0.0.0", "::", "[::]"})

_logger = logging.getLogger(__name__)


class Membership:
    """Keeps this node's place in the log. `address` is where its data port listens, `transports`
    what it speaks there; `count_blocks` gives the counters of its KV blocks, `seal` signs its
    tickets."""

    def __init__(
        self,
        settings: Settings,
        log: JetStreamLog,
        writer: Writer,
        follower: Follower,
        life: Life,
        pool: Pool,
        gpus: CudaPool,
        disk_room: DiskRoom,
        peers: Peers,
        journal: Journal,
        reporter: Reporter,
        address: str,
        transports: Callable[[], tuple[str, ...]],
        count_blocks: Callable[[], dict[str, int]],
        seal: Seal,
    ) -> None:
        self._settings = settings
        self._log = log
        self._writer = writer
        self._follower = follower
        self._life = life
        self._pool = pool
        self._gpus = gpus
        self._disk_room = disk_room
        self._peers = peers
        self._count_blocks = count_blocks
        self._seal = seal
        self._journal = journal
        self._reporter = reporter
        self._listening = address
        self._address = advertise(address, settings.advertise)
        self._transports = transports

    async def join(self) -> None:
        """Begins a new life of the node: the epoch after the last one. Raises Rejected when
        another mover of the same name keeps coming first."""
        for attempt in range(1, JOINS_MAX + 1):
            known = self._follower.view.nodes.get(self._life.node)
            # Known before it is written: the watcher must take it for ours.
            self._life.epoch = Epoch((known.epoch if known else 0) + 1)
            await self._note_life(self._life.epoch)
            try:
                await execute(self._writer, self._follower, [self._command()], actor=self._actor)
                return
            except Rejected:
                if attempt == JOINS_MAX:
                    raise

    async def announce(self) -> None:
        """As `join`, while the log is away: the journal tells it when it is back, after what the
        last life has left there."""
        known = self._follower.view.nodes.get(self._life.node)
        last = max(known.epoch if known else 0, self._journal.life.epoch)
        self._life.epoch = Epoch(last + 1)
        await self._note_life(self._journal.life.joined)
        await self._reporter.report([self._command()], None)

    async def _note_life(self, joined: Epoch) -> None:
        await self._journal.note_life(
            LastLife(self._life.epoch, self._listening, self._seal.seed, joined)
        )

    def check_announced(self) -> None:
        """Raises Unavailable when the log has not taken what was announced: then the node has to
        begin anew."""
        known = self._follower.view.nodes.get(self._life.node)
        if known is None or known.epoch != self._life.epoch:
            raise Unavailable(
                f"The log knows another life of node {self._life.node} than this one.",
                hint="This mover ends; the next one joins as a new life.",
            )
        self._seal.begin()

    @property
    def _actor(self) -> str:
        return self._life.actor

    def _command(self) -> JoinNode:
        return JoinNode(
            node=self._life.node,
            epoch=self._life.epoch,
            address=self._address,
            tiers={
                **({Tier.GPU: self._gpus.capacity_bytes} if self._gpus.devices else {}),
                Tier.DRAM: self._settings.dram_bytes,
                Tier.DISK: self._disk_room.capacity_bytes,
                **({Tier.OBJECT: SIZE_BYTES_MAX} if self._settings.object_url else {}),
            },
            transports=self._transports(),
            overflow=self._settings.overflow,
            labels=self._settings.labels,
            bandwidth=self._settings.bandwidth,
            ticket_key=self._seal.public_key,
        )

    async def rejoin(self, called: asyncio.Event, why: str) -> None:
        """Joins anew each time that it is called to, for ever."""
        while True:
            await called.wait()
            called.clear()
            _logger.warning("%s; it joins again", why)
            await self.join()

    async def leave(self) -> None:
        """Ends this life in good order."""
        known = self._follower.view.nodes.get(self._life.node)
        if known is None or known.epoch != self._life.epoch or known.status is NodeStatus.LEFT:
            return
        command = LeaveNode(node=self._life.node, epoch=self._life.epoch)
        await execute(self._writer, self._follower, [command], actor=self._actor)

    async def beat(self) -> None:
        """Tells every `heartbeat_s` that the node lives, for ever."""
        subject = subjects.heartbeat(self._settings.cluster, self._life.node)
        while True:
            if self._log.nats.is_connected:
                try:
                    await self._log.nats.publish(subject, self._heartbeat())
                except NatsError as error:
                    _logger.info("no heartbeat: %s", error)
            await asyncio.sleep(self._settings.heartbeat_s)

    def _heartbeat(self) -> bytes:
        stats = self._pool.stats()
        tiers = {
            "dram": {
                "capacity": stats.capacity_bytes,
                "used": stats.used_bytes + stats.retired_bytes,
            },
            "disk": {
                "capacity": self._disk_room.capacity_bytes,
                "used": self._disk_room.used_bytes,
            },
        }
        if self._gpus.devices:
            used = {"capacity": self._gpus.capacity_bytes, "used": self._gpus.used_bytes}
            tiers["gpu"] = used
        return msgspec.json.encode(
            {
                "epoch": self._life.epoch,
                "tiers": tiers,
                "peers": self._peers.report(),
                "blocks": self._count_blocks(),
                "trouble": self._journal.trouble,
            }
        )


def advertise(address: str, host: str | None) -> str:
    """Where others reach the data port: with the host that was set, else the address it listens
    on, else (when that is every address) this machine's name."""
    own_host, _, port = address.rpartition(":")
    if host is None:
        host = socket.gethostname() if own_host in _EVERYWHERE else own_host
    bare = host.strip("[]")
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"
