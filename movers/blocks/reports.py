"""Tells the KV log what this node holds.

Anybody may report from any thread; nothing waits for the log. A task gathers what changed for a
moment, and appends it in few large events. While the log is away, changes gather up to a limit;
beyond that they are dropped and everything is told anew, so memory stays bounded by what is held.
Everything is told anew, too, when a life of the node begins, when the log is another one or has
forgotten where this node began, and when so much was told that a reader who comes late would have
too much to read.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from tensorcast.log.blocks import BlockLog, Reach, limits
from tensorcast.log.identity import new_event_id, now
from tensorcast.movers.core.block_changes import BlockLedger, Teller
from tensorcast.movers.core.telling import TellingPace
from tensorcast.movers.reports import Life
from tensorcast.schema.block_events import BlockDraft, BlockEvent, BlocksCleared
from tensorcast.schema.errors import TensorCastError, Unavailable
from tensorcast.schema.ids import Epoch, EventId, Seq, Tier

LINGER_S: Final = 0.05
FLUSH_KEYS: Final = 16_384
"""So many changed keys are told at once, without waiting for more."""
APPEND_EVENTS: Final = 8
LOOK_S: Final = 1.0
CHECK_S: Final = 30.0
ANEW_S_MIN: Final = 300.0
"""A log that forgets faster than this is too small: telling everything again would not help."""
READ_KEYS: Final = 65_536
"""A reader who comes late reads at most so many keys beyond four times what is held."""
RETRY_S: Final = 0.5
_logger = logging.getLogger(__name__)


class _Beginning:
    """Where in which log the node last began anew, and when (on the loop's clock)."""

    def __init__(self, created: str, seq: Seq, at_s: float) -> None:
        self.created = created
        self.seq = seq
        self.at_s = at_s


class BlockReports:
    """Keeps the contract of `BlockReporter` on a KV log. Needs `run` in a task, once `life` has
    begun: it says which node speaks, and in which life."""

    def __init__(self, log: BlockLog, life: Life, *, linger_s: float = LINGER_S) -> None:
        self._log = log
        self._life = life
        self._ledger = BlockLedger()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news = asyncio.Event()
        self._large = asyncio.Event()
        self._idle = asyncio.Event()
        self._teller = Teller(life.node)
        self._epoch = Epoch(0)
        self._beginning: _Beginning | None = None
        self._checked_s = 0.0
        self._pace = TellingPace(linger_s)

    # ---- from any thread -------------------------------------------------------------------

    def stored(self, tier: Tier, blocks: Sequence[tuple[bytes, int]]) -> None:
        """As `BlockReporter.stored`."""
        with self._lock:
            before = self._ledger.waiting
            self._ledger.stored(tier, blocks)
            self._wake(before)

    def evicted(self, tier: Tier, keys: Sequence[bytes]) -> None:
        """As `BlockReporter.evicted`."""
        with self._lock:
            before = self._ledger.waiting
            self._ledger.evicted(tier, keys)
            self._wake(before)

    def damaged(self, tier: Tier, keys: Sequence[bytes]) -> None:
        """As `BlockReporter.damaged`. Told although the blocks be stored again at once."""
        with self._lock:
            before = self._ledger.waiting
            self._ledger.damaged(tier, keys)
            self._wake(before)

    def cleared(self) -> None:
        """As `BlockReporter.cleared`."""
        with self._lock:
            self._ledger.cleared()
            self._wake(0)

    def _wake(self, before: int) -> None:
        """Wakes the task once for a batch of reports, and again when they have become many."""
        if self._loop is None:
            return
        if not before and self._ledger.is_dirty:
            self._loop.call_soon_threadsafe(self._news.set)
        if before < FLUSH_KEYS <= self._ledger.waiting:
            self._loop.call_soon_threadsafe(self._large.set)

    # ---- in the event loop -----------------------------------------------------------------

    async def run(self) -> None:
        """Tells for ever what changed. Trouble with the log is waited out."""
        loop = asyncio.get_running_loop()
        with self._lock:
            self._loop = loop
        try:
            while True:
                await self._live()
        finally:
            with self._lock:  # whoever reports now reports to nobody
                self._loop = None

    async def _live(self) -> None:
        try:
            await self._gather()
            self._check_life()
            await self._check_log()
            await self._tell()
            return
        except Unavailable as error:
            _logger.info("what blocks this node holds is told later: %s", error)
            pause_s = RETRY_S
        except TensorCastError as error:
            _logger.warning("what blocks this node holds is not told: %s", error)
            pause_s = CHECK_S
            self._begin_anew("the log refused an append")
        await asyncio.sleep(pause_s)

    async def settled(self) -> None:
        """Returns when all that was reported before the call has been told."""
        while True:
            with self._lock:
                if not self._ledger.is_dirty and self._idle.is_set():
                    return
            self._idle.clear()
            await self._idle.wait()

    async def _gather(self) -> None:
        """Waits until something has changed, and a moment longer: it may become more."""
        with self._lock:
            is_dirty = self._ledger.is_dirty
        if not is_dirty:
            self._idle.set()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), LOOK_S)
        if self._news.is_set() and not self._large.is_set():
            with suppress(TimeoutError):
                rest_s = self._pace.rest_s(asyncio.get_running_loop().time())
                await asyncio.wait_for(self._large.wait(), rest_s)
        self._news.clear()
        self._large.clear()

    def _begin_anew(self, reason: str) -> None:
        with self._lock:
            self._ledger.begin_anew(reason)

    def _check_life(self) -> None:
        if self._epoch != self._life.epoch:
            self._epoch = self._life.epoch
            self._begin_anew("a life of the node begins")

    async def _check_log(self) -> None:
        """Begins anew when a reader could not learn from the log what this node holds, or would
        have to read too much for it. Raises Unavailable."""
        began, clock_s = self._beginning, asyncio.get_running_loop().time()
        if began is None or clock_s - self._checked_s < CHECK_S:
            return
        self._checked_s = clock_s
        reach = await self._log.reach()
        with self._lock:
            reason = self._doubt(began, reach, clock_s - began.at_s)
            if reason is not None:
                self._ledger.begin_anew(reason)

    def _doubt(self, began: _Beginning, reach: Reach, age_s: float) -> str | None:
        blocks = self._ledger.blocks
        if reach.created != began.created:
            return "the log is another one"
        if not blocks or age_s < ANEW_S_MIN:
            return None
        if reach.first > began.seq:
            return "the log has forgotten the beginning"
        if self._teller.told > 4 * blocks + READ_KEYS:
            return "the way from the beginning is long"
        return "the beginning is old" if age_s > limits()[1] / 4 else None

    # ---- telling ---------------------------------------------------------------------------

    async def _tell(self) -> None:
        """Appends what changed. Gives up without a word when it does not matter any more."""
        with self._lock:
            if not self._ledger.is_dirty:
                return
            self._idle.clear()
            changes = self._ledger.take()
        self._pace.told(asyncio.get_running_loop().time())
        try:
            created = (await self._log.reach()).created if changes.reason else ""
        except TensorCastError:
            self._begin_anew(changes.reason or "")
            raise
        for drafts in self._drafts(self._teller.events(changes, self._epoch)):
            last = await self._append(drafts)
            if last is None:
                return
            if isinstance(drafts[0].event, BlocksCleared):
                first = Seq(last - len(drafts) + 1)
                self._checked_s = asyncio.get_running_loop().time()
                self._beginning = _Beginning(created, first, self._checked_s)

    async def _append(self, drafts: Sequence[BlockDraft]) -> Seq | None:
        """The position of the last draft, once it is in the log, however long that takes; None
        when everything is to be told anew instead."""
        while True:
            try:
                return await self._log.append(drafts)
            except Unavailable as error:
                _logger.info("what blocks this node holds is told later: %s", error)
            await asyncio.sleep(RETRY_S)
            self._check_life()
            with self._lock:
                if self._ledger.begins_anew:
                    return None

    def _drafts(self, events: Iterator[BlockEvent]) -> Iterator[list[BlockDraft]]:
        """The events as drafts, as many together as one append takes. Those after a beginning have
        it as their cause."""
        cause: EventId | None = None
        batch: list[BlockDraft] = []
        for event in events:
            draft = BlockDraft(
                id=new_event_id(), at=now(), actor=self._life.actor, event=event, cause=cause
            )
            if isinstance(event, BlocksCleared):
                cause = draft.id
            batch.append(draft)
            if len(batch) >= APPEND_EVENTS:
                yield batch
                batch = []
        if batch:
            yield batch
