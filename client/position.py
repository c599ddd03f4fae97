"""How far a client has seen the log: what it wrote, it reads back."""

from __future__ import annotations

import asyncio
from typing import TypeVar

import msgspec

from tensorcast.schema.ids import Seq

R = TypeVar("R", bound=msgspec.Struct)


class Position:
    """The highest position of the log that this client was told. It goes along with each read as
    `after`, so an answer never misses the client's own writes; those that are accepted and not yet
    in the log are waited for first."""

    def __init__(self) -> None:
        self.seq = Seq(0)
        self._writes: set[asyncio.Future[None]] = set()

    def advance(self, seq: Seq) -> None:
        """Moves forward to `seq`; never back."""
        self.seq = max(self.seq, seq)

    def expect(self, write: asyncio.Future[None]) -> None:
        """A write that will be in the log when this future is done."""
        self._writes.add(write)
        write.add_done_callback(self._writes.discard)

    async def settled(self) -> None:
        """Waits for the writes that were accepted so far, however they end."""
        writes = [write for write in self._writes if not write.done()]
        if writes:
            await asyncio.wait(writes)

    async def include(self, request: R) -> R:
        """The request, once it can include what this client wrote before."""
        if not self._writes:
            return request
        await self.settled()
        if not hasattr(request, "after"):
            return request
        return msgspec.structs.replace(request, after=max(request.after, self.seq))

    def forget(self) -> None:
        """In a forked child: the parent's writes are the parent's to wait for."""
        self._writes = set()
