"""One reading of a log for all its readers in a process.

The last events stay in memory for a while: who stands among them is served from there, who is
further behind reads for itself until it has caught up. So the server sends each new event once, a
slow reader holds nobody back, and nothing grows without bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final

from tensorcast.log.port import Stored
from tensorcast.log.restore import RestorableLog
from tensorcast.schema.envelope import Draft
from tensorcast.schema.ids import Seq

KEPT_EVENTS_MAX: Final = 65_536
KEPT_BYTES_MAX: Final = 32 << 20


class Tail:
    """Keeps the contract of `RestorableLog` for another log. Needs `run` in a task; until that has
    begun, everybody reads for himself."""

    def __init__(
        self,
        log: RestorableLog,
        *,
        events_max: int = KEPT_EVENTS_MAX,
        bytes_max: int = KEPT_BYTES_MAX,
    ) -> None:
        self._log = log
        self._events_max = events_max
        self._bytes_max = bytes_max
        self._kept: list[Stored] = []
        self._kept_bytes = 0
        self._last: Seq | None = None
        self._grown = asyncio.Event()

    @property
    def created(self) -> str:
        """As `RestorableLog.created`."""
        return self._log.created

    async def restore(self, events: Sequence[Stored]) -> None:
        """As `RestorableLog.restore`."""
        await self._log.restore(events)

    async def run(self) -> None:
        """Reads what is appended from now on, for ever. Raises what `Log.read` raises: from then on
        everybody reads for himself, and is told the same."""
        self._last = await self._log.last_seq()
        try:
            async with aclosing(self._log.read(after=self._last)) as batches:
                async for batch in batches:
                    self._keep(batch)
        finally:
            self._last = None
            self._kept.clear()
            self._wake()

    def _keep(self, batch: Sequence[Stored]) -> None:
        self._kept.extend(batch)
        self._kept_bytes += sum(len(one.payload) for one in batch)
        self._last = batch[-1].seq
        if len(self._kept) > self._events_max or self._kept_bytes > self._bytes_max:
            del self._kept[: (len(self._kept) + 1) // 2]
            self._kept_bytes = sum(len(one.payload) for one in self._kept)
        self._wake()

    def _wake(self) -> None:
        self._grown.set()
        self._grown = asyncio.Event()

    def _reaches(self, after: Seq) -> bool:
        """Whether every event after this one is kept, or is still to come."""
        return self._last is not None and self._last - len(self._kept) <= after

    async def read(
        self, *, after: Seq, batch_max: int = 1000
    ) -> AsyncGenerator[tuple[Stored, ...], None]:
        """As `Log.read`."""
        is_known = False
        while True:
            # Who begins beyond the end asks the log itself, which says what is wrong.
            is_known = is_known or after <= (self._last or 0)
            if not (is_known and self._reaches(after)):
                async with aclosing(self._log.read(after=after, batch_max=batch_max)) as batches:
                    async for batch in batches:
                        yield batch
                        after = batch[-1].seq
                        if self._reaches(after):
                            break
                is_known = True
            if self._last is None:
                continue
            start = after - self._last + len(self._kept)
            found = tuple(self._kept[start : start + batch_max])
            if found:
                after = found[-1].seq
                yield found
            else:
                await self._grown.wait()

    async def append(self, drafts: Sequence[Draft]) -> tuple[Seq, ...]:
        """As `Log.append`."""
        return await self._log.append(drafts)

    async def read_one(self, seq: Seq) -> Stored | None:
        """As `Log.read_one`."""
        return await self._log.read_one(seq)

    async def last_seq(self) -> Seq:
        """As `Log.last_seq`."""
        return await self._log.last_seq()

    async def aclose(self) -> None:
        """As `Log.aclose`."""
        await self._log.aclose()
