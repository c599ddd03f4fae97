"""A control plane over a log in memory: the real services, without servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from fnmatch import fnmatchcase

from tensorcast.controlplane.services.api_answers import describe_event
from tensorcast.controlplane.services.api_desk import Desk
from tensorcast.controlplane.services.gate import Gate
from tensorcast.controlplane.services.heartbeats import Heartbeats
from tensorcast.controlplane.services.progress import Progress
from tensorcast.controlplane.store.block_queries import Mention
from tensorcast.controlplane.store.block_rows import Holding, Place
from tensorcast.controlplane.store.engine_block_queries import Holder
from tensorcast.controlplane.store.engine_block_rows import Told
from tensorcast.controlplane.store.event_infos import About
from tensorcast.log.execute import execute
from tensorcast.log.follower import Follower
from tensorcast.log.identity import new_event_id, now
from tensorcast.log.memory import MemoryBlocks, MemoryCursors, MemoryLog
from tensorcast.log.writer import Writer
from tensorcast.schema.api import AuditQuery, BlockQuery, EventInfo
from tensorcast.schema.api_store import DeadPage, DeadQuery
from tensorcast.schema.blocks import BlockKey
from tensorcast.schema.cluster import ClusterView, project
from tensorcast.schema.codec import decode
from tensorcast.schema.commands import Command
from tensorcast.schema.envelope import Draft, Recorded
from tensorcast.schema.errors import Timeout, Unavailable
from tensorcast.schema.events import (
    Event,
    KeyMoved,
    KeyRemoved,
    OperationIssued,
    SignalEmitted,
    UnknownEvent,
    aggregate_of,
)
from tensorcast.schema.ids import EventId, NodeId, Seq


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class MemoryHistory:
    """As Postgres would answer, from the log itself. `away` makes it unreachable; it
    stays `lag` events behind."""

    def __init__(self, log: MemoryLog) -> None:
        self.away = False
        self.lag = 0
        self.parked: dict[tuple[str, str], int] = {}
        self._log = log

    async def committed_seq(self) -> Seq:
        if self.away:
            raise Unavailable("Postgres cannot be reached.")
        return Seq(max(0, await self._log.last_seq() - self.lag))

    async def wait_committed(self, seq: Seq, timeout_s: float) -> Seq:
        committed = await self.committed_seq()
        if committed < seq:
            raise Timeout(f"Event {seq} is not committed.")
        return committed

    async def find_events(self, query: AuditQuery, about: About | None) -> tuple[EventInfo, ...]:
        await self.committed_seq()
        found = [one for one in await read_all(self._log) if _matches(one, query, about)]
        chosen = found[-query.limit :] if query.newest else found[: query.limit]
        return tuple(map(describe_event, chosen))

    async def find_event(self, event: EventId) -> EventInfo | None:
        return next((describe_event(o) for o in await read_all(self._log) if o.id == event), None)

    async def find_effects(self, causes: Sequence[EventId], limit: int) -> tuple[EventInfo, ...]:
        found = [one for one in await read_all(self._log) if one.cause in causes]
        return tuple(map(describe_event, found[:limit]))

    async def seq_at(self, moment: datetime) -> Seq:
        found = [one.seq for one in await read_all(self._log) if one.at <= moment]
        return max(found, default=Seq(0))

    async def find_signals(self, seqs: Sequence[Seq]) -> dict[Seq, dict[str, object]]:
        await self.committed_seq()
        found = {one.seq: one.event for one in await read_all(self._log) if one.seq in seqs}
        return {seq: e.data for seq, e in found.items() if isinstance(e, SignalEmitted)}

    async def find_letters(self, query: DeadQuery) -> DeadPage:
        return DeadPage(letters=(), total=0)

    async def count_letters(self) -> dict[tuple[str, str], int]:
        return self.parked

    async def want_retry(self) -> int:
        return 0

    async def count_wanted(self) -> int:
        return 0

    async def view_at(self, seq: Seq) -> ClusterView:
        await self.committed_seq()
        return fold(one for one in await read_all(self._log) if one.seq <= seq)


def _matches(one: Recorded, query: AuditQuery, about: About | None) -> bool:
    if one.seq <= query.since or isinstance(one.event, UnknownEvent):
        return False
    if about is not None and aggregate_of(one.event) != (about.kind, about.id):
        return False
    if query.before is not None and one.seq >= query.before:
        return False
    if query.time_to is not None and one.at > query.time_to:
        return False
    types = query.types or ((query.type,) if query.type else ())
    if types and not any(fnmatchcase(one.type, pattern) for pattern in types):
        return False
    is_of = aggregate_of(one.event) == ("plan", query.plan) or one.actor == query.plan
    if query.plan is not None and not is_of:
        return False
    for kind in ("key", "operation", "engine"):
        name = getattr(query, kind)
        if name is not None and aggregate_of(one.event) != (kind, name):
            return False
    if isinstance(one.event, KeyMoved | KeyRemoved) and query.artifact == one.event.previous:
        return True
    artifact = getattr(one.event, "artifact", None)
    if artifact is None and isinstance(one.event, OperationIssued):
        artifact = one.event.work.artifact
    return query.artifact is None or artifact == query.artifact


async def read_all(log: MemoryLog) -> list[Recorded]:
    """Everything that a log holds now."""
    found = []
    for seq in range(1, await log.last_seq() + 1):
        stored = await log.read_one(Seq(seq))
        assert stored is not None
        found.append(decode(stored.payload, stored.seq))
    return found


def fold(events) -> ClusterView:
    """The view after these events."""
    view = ClusterView()
    for recorded in events:
        view = project(view, recorded)
    return view


class MemoryBlockHistory:
    """Answers about KV blocks what a test has put there."""

    def __init__(self) -> None:
        self.held: dict[Place, Holding] = {}
        self.mentions: tuple[Mention, ...] = ()
        self.events: tuple[EventInfo, ...] = ()
        self.engines: dict[str, tuple[Told, tuple[int, ...]]] = {}
        self.holders: tuple[Holder, ...] = ()

    async def holdings(self) -> dict[Place, Holding]:
        return self.held

    async def find_mentions(self, key: BlockKey, node: NodeId | None) -> tuple[Mention, ...]:
        return tuple(one for one in self.mentions if node in (None, one.node))

    async def find_block_events(self, query: BlockQuery) -> tuple[EventInfo, ...]:
        return tuple(one for one in self.events if one.seq > query.since)

    async def engine_views(self) -> dict[str, tuple[Told, tuple[int, ...]]]:
        return self.engines

    async def find_holders(
        self, prefixes: Sequence[bytes], block_tokens: int
    ) -> tuple[Holder, ...]:
        return tuple(one for one in self.holders if one.prefix in prefixes)


class Rig:
    """A desk over a log in memory, with its follower and writer running."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.clock = Clock()
        self.follower = Follower(self.log)
        self.writer = Writer(self.log, linger_s=0)
        self.cursors = MemoryCursors()
        self.history = MemoryHistory(self.log)
        self.heartbeats = Heartbeats(self.clock)
        self.progress = Progress()
        self.blocks = MemoryBlockHistory()
        self.block_log = MemoryBlocks()
        self.desk = Desk(
            cluster="default",
            writer=self.writer,
            follower=self.follower,
            cursors=self.cursors,
            history=self.history,
            heartbeats=self.heartbeats,
            progress=self.progress,
            blocks=self.blocks,
            block_log=self.block_log,
            block_progress=Progress(),
            gate=Gate(self.cursors),
        )

    @property
    def view(self) -> ClusterView:
        return self.follower.view

    async def append(self, *events: Event, cause: EventId | None = None) -> Seq:
        """Appends events as they are, and waits until the follower has them."""
        drafts = [
            Draft(id=new_event_id(), at=now(), actor="test", event=event, cause=cause)
            for event in events
        ]
        seqs = await self.log.append(drafts)
        await self.follower.wait_for(seqs[-1], 5)
        return seqs[-1]

    async def replay(self, recorded: Sequence[Recorded]) -> None:
        """Appends the events of a world."""
        await self.append(*(one.event for one in recorded))

    async def execute(self, *commands: Command, actor: str = "user:ada@desk"):
        """Executes commands as one."""
        return await execute(self.writer, self.follower, commands, actor=actor)


@asynccontextmanager
async def running_rig() -> AsyncIterator[Rig]:
    """A rig whose follower and writer run until the block ends."""
    rig = Rig()
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(rig.follower.run()), tasks.create_task(rig.writer.run())]
        try:
            yield rig
        finally:
            for task in running:
                task.cancel()
