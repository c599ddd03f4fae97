"""What the handlers of the API work with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from tensorcast.controlplane.core.catalog import CATALOG, Catalog
from tensorcast.controlplane.services.gate import Gate
from tensorcast.controlplane.services.heartbeats import Heartbeats
from tensorcast.controlplane.services.progress import Progress
from tensorcast.controlplane.services.refusals import Refusals
from tensorcast.controlplane.store.block_queries import Mention
from tensorcast.controlplane.store.block_rows import Holding, Place
from tensorcast.controlplane.store.dead_queries import Counts
from tensorcast.controlplane.store.engine_block_queries import Holder
from tensorcast.controlplane.store.engine_block_rows import Told
from tensorcast.controlplane.store.event_infos import About
from tensorcast.log.blocks import BlockLog
from tensorcast.log.follower import Follower
from tensorcast.log.port import Cursors
from tensorcast.log.writer import Writer
from tensorcast.schema.api import WAIT_S_MAX, AuditQuery, BlockQuery, Browse, EventInfo, Show
from tensorcast.schema.api_store import DeadPage, DeadQuery
from tensorcast.schema.blocks import BlockKey
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.errors import InvalidArgument, Timeout, Unavailable
from tensorcast.schema.ids import EventId, NodeId, Seq

if TYPE_CHECKING:
    from tensorcast.controlplane.services.api_audit import Proofs

AFTER_S_MAX = 10.0
"""A request is answered at most so long after it named an event that has not been seen yet."""


class History(Protocol):
    """What is asked of the events in Postgres. Every method raises Unavailable while it is away."""

    async def committed_seq(self) -> Seq:
        """Position of the last committed event; 0 when there is none."""
        ...

    async def wait_committed(self, seq: Seq, timeout_s: float) -> Seq:
        """As `committed_seq`, once `seq` is committed. Raises Timeout."""
        ...

    async def find_events(self, query: AuditQuery, about: About | None) -> tuple[EventInfo, ...]:
        """The events that match, in the order of the log; `about` stands for `query.what`."""
        ...

    async def find_event(self, event: EventId) -> EventInfo | None:
        """One event by its id."""
        ...

    async def find_effects(self, causes: Sequence[EventId], limit: int) -> tuple[EventInfo, ...]:
        """The first `limit` events that name one of these as their cause, in the order of the
        log."""
        ...

    async def seq_at(self, moment: datetime) -> Seq:
        """Position of the last event that is not later than `moment`; 0 when there is none."""
        ...

    async def view_at(self, seq: Seq) -> ClusterView:
        """The fold of the events up to `seq`."""
        ...

    async def find_signals(self, seqs: Sequence[Seq]) -> Mapping[Seq, dict[str, object]]:
        """What the signals at these positions say; those that are not there are left out."""
        ...

    async def find_letters(self, query: DeadQuery) -> DeadPage:
        """The parked events."""
        ...

    async def count_letters(self) -> Counts:
        """How many are parked, by log and fault."""
        ...

    async def want_retry(self) -> int:
        """Asks the writers to try all of them again."""
        ...

    async def count_wanted(self) -> int:
        """How many of those that somebody asked for have not been tried again yet."""
        ...


class BlockHistory(Protocol):
    """What is asked of the KV events in Postgres. Raises Unavailable while it is away."""

    async def holdings(self) -> Mapping[Place, Holding]:
        """What each node said to hold of each space in each tier."""
        ...

    async def find_mentions(self, key: BlockKey, node: NodeId | None) -> tuple[Mention, ...]:
        """The last events that named a block, the newest first."""
        ...

    async def find_block_events(self, query: BlockQuery) -> tuple[EventInfo, ...]:
        """The KV events that match, in the order of the KV log."""
        ...

    async def engine_views(self) -> Mapping[str, tuple[Told, tuple[int, ...]]]:
        """What is known of the blocks of each engine, and their sizes in tokens."""
        ...

    async def find_holders(
        self, prefixes: Sequence[bytes], block_tokens: int
    ) -> tuple[Holder, ...]:
        """Which engines hold blocks of these prefixes."""
        ...


@dataclass(frozen=True, kw_only=True)
class Desk:
    """Everything that a handler may ask or write to."""

    cluster: str
    writer: Writer
    follower: Follower
    cursors: Cursors
    history: History
    heartbeats: Heartbeats
    progress: Progress
    blocks: BlockHistory
    block_log: BlockLog
    block_progress: Progress
    gate: Gate
    catalog: Catalog = CATALOG
    proofs: Proofs | None = None
    refusals: Refusals = field(default_factory=Refusals)

    def check_changeable(self) -> None:
        """Raises Unavailable while the log is not the one whose events Postgres has, or a log is
        brought in."""
        self.gate.check_open()
        refusal = self.progress.refusal
        if refusal is not None:
            raise Unavailable(f"Nothing can be changed. {refusal.message}", hint=refusal.hint)

    async def view_after(self, seq: Seq) -> ClusterView:
        """The view once it includes event `seq`. Raises Timeout."""
        return await self.follower.wait_for(seq, AFTER_S_MAX)

    async def view_for(self, request: Show | Browse) -> ClusterView:
        """The view that a request asks about: of now, or as it was."""
        if request.at is None:
            return await self.view_after(request.after)
        return await self.view_at(request.at)

    async def view_at(self, seq: Seq) -> ClusterView:
        """The view as it was after event `seq`. Raises InvalidArgument for one that there is not,
        Timeout, and Unavailable while Postgres is away."""
        await self.check_reached(seq)
        if self.follower.view.at == seq:
            return self.follower.view
        return await self.history.view_at(seq)

    async def check_reached(self, seq: Seq) -> None:
        """Makes sure that there is such an event, and that Postgres has it. Raises InvalidArgument,
        Timeout."""
        if seq < 0:
            raise InvalidArgument(f"{seq} is not a position in the log.", hint="They count from 1.")
        last = await self.writer.last_seq()
        if seq > last:
            raise InvalidArgument(f"There is no event {seq} yet.", hint=f"The last one is {last}.")
        await self.history.wait_committed(seq, AFTER_S_MAX)

    async def view_when(
        self, predicate: Callable[[ClusterView], bool], timeout_s: float
    ) -> ClusterView:
        """The first view that `predicate` accepts, or the one after `timeout_s` (at most
        `WAIT_S_MAX`)."""
        try:
            return await self.follower.wait_until(predicate, min(max(0.0, timeout_s), WAIT_S_MAX))
        except Timeout:
            return self.follower.view
