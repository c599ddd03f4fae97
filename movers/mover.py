"""One life of a mover: the parts, wired, and the order in which they start and stop.

The only file beside `main` that knows every concrete class.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Final

import msgspec

from tensorcast.log.blocks import JetStreamBlocks
from tensorcast.log.follower import Follower
from tensorcast.log.jetstream import JetStreamLog
from tensorcast.log.writer import Writer
from tensorcast.movers.agent import Agent
from tensorcast.movers.beginning import Beginning, listen
from tensorcast.movers.blocks.base import NullSpill
from tensorcast.movers.blocks.node import NodeBlocks
from tensorcast.movers.blocks.projection import BlockProjection
from tensorcast.movers.blocks.reports import BlockReports
from tensorcast.movers.budget import DiskBudget
from tensorcast.movers.core.supply import is_coming
from tensorcast.movers.counting import count
from tensorcast.movers.depots import Depots
from tensorcast.movers.disk_pulls import DiskPulls
from tensorcast.movers.disk_room import DiskRoom
from tensorcast.movers.doors import Door, Refusals, Seal, sign_for_users
from tensorcast.movers.excerpts import Excerpts
from tensorcast.movers.fabric import open_fabric
from tensorcast.movers.fills import Fills
from tensorcast.movers.gpus import make_work, open_room
from tensorcast.movers.hibernation import Hibernation
from tensorcast.movers.images import Images
from tensorcast.movers.journal import Journal
from tensorcast.movers.levels import Levels
from tensorcast.movers.locks import Locks
from tensorcast.movers.membership import Membership
from tensorcast.movers.memory.handover import Lifelines
from tensorcast.movers.memory.pool import Pool
from tensorcast.movers.notify import Notifier
from tensorcast.movers.operations import Operations
from tensorcast.movers.peers import Peers
from tensorcast.movers.pending import Pending
from tensorcast.movers.pulls import Puller
from tensorcast.movers.puts import Puts
from tensorcast.movers.readers import Readers
from tensorcast.movers.recollection import Recollection, Remembered
from tensorcast.movers.recovery import Recovery
from tensorcast.movers.reports import Life, Reporter
from tensorcast.movers.residents import Residents
from tensorcast.movers.room import Room
from tensorcast.movers.sealing import Sealing
from tensorcast.movers.settings import Settings
from tensorcast.movers.sockets import SocketServer
from tensorcast.movers.threads import in_thread
from tensorcast.movers.tiers.block_files import BlockFiles
from tensorcast.movers.tiers.disk import DiskTier
from tensorcast.movers.tiers.object import ObjectTier
from tensorcast.movers.transports.tcp.server import TcpServer
from tensorcast.movers.upkeep import Upkeep
from tensorcast.schema.block_wire import MAGIC as BLOCKS_MAGIC
from tensorcast.schema.errors import Conflict, Timeout, Unavailable
from tensorcast.schema.ids import ArtifactId
from tensorcast.schema.socket import Stats, Welcome

VIEW_FILE: Final = "view.db"
WRITE_S_MAX: Final = 15.0
SETTLE_S_MAX: Final = 5.0
LEAVE_S_MAX: Final = 5.0

_logger = logging.getLogger(__name__)


class Mover:
    """Owns everything that it makes; the log and the journal are the caller's. Use it once, as a
    context. A log that is away is waited for by what is `remembered` of it; one that is there is
    followed from what had `begun` in an earlier life."""

    def __init__(
        self,
        settings: Settings,
        log: JetStreamLog,
        journal: Journal,
        notifier: Notifier,
        remembered: Remembered | None = None,
        begun: Remembered | None = None,
    ) -> None:
        self._settings = settings
        self._remembered = remembered
        self._log = log
        self._journal = journal
        self._notifier = notifier
        self._life = Life(settings.node)
        known = remembered or begun
        journal.note_shown(known.shown if known else ())
        self._follower = Follower(log, view=known.view if known else None)
        self._recollection = Recollection(
            settings.data_dir / VIEW_FILE, settings.cluster, self._follower, journal, known
        )
        self._writer = Writer(log, retry_s=WRITE_S_MAX)
        self._seal = Seal(self._life, journal.life if remembered else None)
        self._fabric = open_fabric(settings, self._seal.sign)
        self._pool = Pool(settings.dram_bytes, notifier, self._fabric.watcher)
        self._disk = DiskTier(settings.data_dir / "disk")
        self._lifelines = Lifelines()
        self._reporter = Reporter(journal, self._life)
        self._gpus = open_room(
            settings, self._lifelines, self._fabric, self._reporter, self._follower, self._life
        )
        self._residents = Residents(
            settings.node, self._pool, journal, self._disk, self._is_coming, self._gpus
        )
        self._peers = Peers()
        self._refusals = Refusals(self._reporter, self._life)
        door = Door(settings.node, self._follower, self._refusals)
        kv_log = JetStreamBlocks(log.connection, settings.cluster)
        self._block_reports = BlockReports(kv_log, self._life)
        self._block_places = BlockProjection(kv_log, log, self._follower, settings.node)
        self._block_files = BlockFiles(
            settings.data_dir / "blocks", settings.kv_disk_bytes, self._block_reports
        )
        self._blocks = NodeBlocks(
            self._pool,
            settings.kv_bytes,
            settings.kv_eviction,
            settings.cluster,
            settings.node,
            reporter=self._block_reports,
            locator=self._block_places,
            spill=self._block_files if settings.kv_disk_bytes else NullSpill(),
            door=door,
            sign=self._seal.sign_blocks,
        )
        self._server = self._listen(door)
        self._background: list[asyncio.Task[None]] = []
        self._wire()

    def _listen(self, door: Door) -> TcpServer:
        settings = self._settings
        last = self._journal.life.address if self._remembered else ""
        server = partial(
            TcpServer,
            provider=self._residents,
            cluster=settings.cluster,
            node=settings.node,
            guests={BLOCKS_MAGIC: self._blocks.serve_peer}
            | self._fabric.guests(self._residents, door),
            door=door,
        )
        return listen(settings.listen, last, server)

    def _wire_rooms(self) -> Room:
        settings, follower, life = self._settings, self._follower, self._life
        room = Room(
            self._pool,
            self._residents,
            self._lifelines,
            self._reporter,
            follower,
            life,
            wait_s=settings.room_wait_s,
            overflow=settings.overflow,
        )
        self._disk_room = DiskRoom(
            DiskBudget(settings.data_dir, settings.disk_bytes),
            self._residents,
            self._reporter,
            follower,
            life,
            wait_s=settings.room_wait_s,
        )
        self._levels = Levels(
            self._pool,
            room,
            self._disk_room,
            self._residents,
            self._reporter,
            life,
            dram=settings.dram_marks,
            disk=settings.disk_marks,
            overflow=settings.overflow,
        )
        self._room = room
        return room

    def _make_images(self, disk_locks: Locks) -> Images:
        return Images(
            self._settings.data_dir / "hibernate",
            self._residents,
            self._disk,
            self._disk_room,
            disk_locks,
            self._reporter,
            self._life,
        )

    def _is_coming(self, artifact: ArtifactId) -> bool:
        return is_coming(self._follower.view, artifact, self._life.node)

    def _wire(self) -> None:
        settings, follower, life = self._settings, self._follower, self._life
        room = self._wire_rooms()
        told = self._reporter, follower, life
        puller = Puller(self._residents, self._fabric.transports, self._peers, *told)
        disk_locks = Locks()
        store = ObjectTier(settings.object_url) if settings.object_url else None
        depots = Depots(store, self._residents, self._reporter, follower, life)
        self._images = self._make_images(disk_locks)
        self._fills = fills = Fills(
            self._residents,
            room,
            self._disk,
            puller,
            *told,
            disk_locks,
            depots,
            self._images,
        )
        self._disk_pulls = DiskPulls(
            self._residents,
            self._pool,
            room,
            self._disk_room,
            self._disk.folder,
            puller,
            *told,
            disk_locks,
        )
        self._operations = operations = Operations(
            self._residents,
            fills,
            self._disk_pulls,
            self._disk,
            self._disk_room,
            *told,
            disk_locks,
            depots,
            self._images,
            make_work(self._gpus, self._residents, fills, self._fabric, *told),
        )
        self._agent = Agent(
            follower,
            self._journal,
            self._reporter,
            operations,
            fills,
            self._disk_pulls,
            life,
            operations_max=settings.operations_max,
        )
        self._wire_socket(room, fills, puller)
        self._wire_node()

    def _wire_socket(self, room: Room, fills: Fills, puller: Puller) -> None:
        settings, follower, life = self._settings, self._follower, self._life
        self._excerpts = Excerpts(room, self._pool, self._lifelines, puller, fills.discard_idle)
        sealing = Sealing(self._residents, self._pool, self._journal, self._writer, follower, life)
        self._pending = Pending(sealing, self._pool, self._journal, settings.data_dir / "accepted")
        self._readers = Readers(
            self._residents,
            self._lifelines,
            self._writer,
            follower,
            life,
            self._pending,
            self._journal,
            self._excerpts,
            self._operations,
            lambda: self._log.is_away,
            self._gpus,
        )
        self._puts = Puts(
            room,
            fills.discard_idle,
            self._pool,
            sealing,
            self._pending,
            follower,
            life,
            puts_max=settings.puts_max,
        )

    def _wire_node(self) -> None:
        settings, follower, life = self._settings, self._follower, self._life
        self._membership = Membership(
            settings,
            self._log,
            self._writer,
            follower,
            life,
            self._pool,
            self._gpus.pool,
            self._disk_room,
            self._peers,
            self._journal,
            self._reporter,
            self._server.address,
            lambda: self._fabric.names,
            self._count_blocks,
            self._seal,
        )
        self._recovery = Recovery(
            self._residents,
            self._pool,
            self._notifier,
            self._disk,
            self._images,
            self._journal,
            self._reporter,
            follower,
            life,
            self._pending,
        )
        self._beginning = Beginning(
            self._log,
            self._writer,
            self._journal,
            follower,
            life,
            self._agent,
            self._membership,
            self._recovery,
            self._disk_pulls,
            self._notifier.status,
        )
        self._upkeep = Upkeep(
            self._log,
            follower,
            self._journal,
            self._recollection,
            self._agent,
            self._fills,
            self._images,
            self._levels,
            self._pool,
            self._fabric,
            lambda: self._notifier.status(self._about()),
        )
        self._hibernation = Hibernation(
            self._residents, self._images.folder, self._reporter, follower, life
        )

    def __enter__(self) -> Mover:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        self._fabric.stop_serving()
        self._recollection.close()
        self._blocks.close()
        self._block_files.close()
        self._lifelines.close()
        self._pool.close()
        self._fabric.close()
        self._gpus.pool.close()

    async def live(self, kept: Mapping[str, int], stopping: asyncio.Event) -> None:
        """From the first look at the log to the last report: serves until `stopping` is set.
        `kept` are the descriptors of an earlier life. Raises Fenced (in a group)."""
        async with asyncio.TaskGroup() as tasks:
            self._run(tasks, self._follower.run(), self._writer.run(), self._agent.watch())
            self._run(tasks, self._recollection.watch())
            if self._remembered is None:
                self._run(tasks, self._beginning.drain())
                await self._beginning.remember(kept)
                self._begin(tasks)
            else:
                await self._beginning.remember_alone(kept)
                self._run(tasks, self._come_back(tasks, self._remembered.created))
            self._run(tasks, self._upkeep.run())
            await self._serve(tasks, stopping)
            await self._agent.stop()
            await self._end()
            for task in self._background:
                task.cancel()

    def _run(self, tasks: asyncio.TaskGroup, *works: Coroutine[object, object, None]) -> None:
        """Goes on with these until the end of this life."""
        for work in works:
            self._background.append(tasks.create_task(work, name=getattr(work, "__qualname__", "")))

    def _begin(self, tasks: asyncio.TaskGroup) -> None:
        """From now on the node has its place in the log."""
        self._run(
            tasks,
            self._membership.beat(),
            self._membership.rejoin(self._agent.lost, "this node was declared lost"),
            self._membership.rejoin(self._upkeep.fabric_grew, "an RDMA device has come up"),
            self._check(),
            self._levels.run(),
            self._block_reports.run(),
            self._block_places.run(),
            self._refusals.run(),
            sign_for_users(self._log.nats, self._settings.cluster, self._life, self._seal),
        )
        if self._settings.kv_disk_bytes:
            self._block_files.start()
        self._agent.start(tasks)

    async def _come_back(self, tasks: asyncio.TaskGroup, created: str) -> None:
        """Without the log: serves what is here, and does the rest when it is back."""
        await self._recovery.check_alone(self._notifier.status)
        self._notifier.status(self._about())
        await self._beginning.come_back(created, lambda: self._run(tasks, self._beginning.drain()))
        self._begin(tasks)

    async def _check(self) -> None:
        await self._recovery.check(self._notifier.status)
        self._notifier.status(self._about())

    async def _serve(self, tasks: asyncio.TaskGroup, stopping: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        sockets = SocketServer(
            self._settings.socket,
            self._readers,
            self._puts,
            self._pending,
            self._welcome,
            self._stats,
            connections_max=self._settings.connections_max,
        )
        loop.add_reader(self._lifelines.fileno(), self._reap)
        serving = tasks.create_task(sockets.serve(), name="sockets")
        try:
            self._blocks.open(self._settings.socket)
            self._notifier.ready(self._about(self._recovery.describe()))
            _logger.info("node %s serves, epoch %d", self._life.node, self._life.epoch)
            await stopping.wait()
            self._notifier.stopping("stopping")
        finally:
            sockets.close()
            serving.cancel()
            loop.remove_reader(self._lifelines.fileno())
        await asyncio.wait([serving])
        await self._puts.finished()

    async def _end(self) -> None:
        """Keeps what only the memory has, and leaves."""
        await in_thread(self._server.close)
        await self._fabric.aclose()
        await self._hibernation.write(self._notifier.status)
        with suppress(TimeoutError, Unavailable, Timeout, Conflict):
            async with asyncio.timeout(SETTLE_S_MAX):
                await self._journal.settled()
            async with asyncio.timeout(LEAVE_S_MAX):
                await self._membership.leave()
        await self._upkeep.note()
        _logger.info("node %s has stopped", self._life.node)

    def _count_blocks(self) -> dict[str, int]:
        """The counters of KV blocks that a heartbeat tells."""
        counters = {**self._blocks.stats()._asdict(), "elsewhere": len(self._block_places)}
        if self._settings.kv_disk_bytes:
            stats = msgspec.structs.asdict(self._block_files.stats())
            counters |= {f"disk_{name}": count for name, count in stats.items()}
        return counters

    def _about(self, note: str = "") -> str:
        note = note or self._images.describe()
        rest = f". {note}" if note else ""
        rest += "" if self._log.is_open else ". Waits for NATS, serves what is here"
        return f"epoch {self._life.epoch}, data port {self._server.address}{rest}"

    def _welcome(self) -> Welcome:
        return Welcome(cluster=self._settings.cluster, node=self._life.node, epoch=self._life.epoch)

    def _reap(self) -> None:
        """Readers have gone."""
        self._excerpts.forget(self._lifelines.reap())
        self._gpus.pool.reclaim()

    def _stats(self) -> Stats:
        return count(
            self._life,
            self._pool,
            self._residents,
            self._journal,
            self._follower,
            self._disk_room,
            self._settings.data_dir,
            puts_open=self._puts.total,
            readers=self._lifelines.total(),
            unsaved_bytes=self._hibernation.unsaved_bytes() + self._pending.size_bytes,
            waiting=self._room.waiting,
            peers=self._peers.report(),
        )
