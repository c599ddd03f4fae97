"""The gate that keeps everybody else from writing while a log is brought in.

A cluster brings in one log at most, at its beginning. Until the whole log is there nothing may
answer a part of it, whatever breaks off meanwhile: so the gate is kept where the cursors are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from tensorcast.log.execute import Appender
from tensorcast.log.port import Cursors
from tensorcast.schema.envelope import Draft
from tensorcast.schema.errors import Unavailable
from tensorcast.schema.ids import Seq

READER: Final = "import"
BEGUN: Final = Seq(1)
DONE: Final = Seq(2)


class Gate:
    """Open at first. Modified only in the event loop."""

    def __init__(self, cursors: Cursors) -> None:
        self._cursors = cursors
        self._open = asyncio.Event()
        self._open.set()

    @property
    def is_open(self) -> bool:
        """Whether anybody may write."""
        return self._open.is_set()

    def check_open(self) -> None:
        """Raises Unavailable while it is closed."""
        if not self.is_open:
            raise Unavailable(
                "A log is being brought into this cluster.",
                hint="If that broke off, go on with `tcctl audit import`, or make a new cluster.",
            )

    async def load(self) -> None:
        """Closes it when an earlier process had closed it. Raises Unavailable."""
        if await self._cursors.load(READER) == BEGUN:
            self._open.clear()

    async def close(self) -> None:
        """Closes it until `release`, for later processes too. Raises Unavailable."""
        await self._cursors.store(READER, BEGUN)
        self._open.clear()

    async def release(self) -> None:
        """Opens it for ever. Raises Unavailable."""
        await self._cursors.store(READER, DONE)
        self._open.set()

    async def wait(self) -> None:
        """Returns once it is open."""
        await self._open.wait()


class GatedAppender:
    """A writer whose appends wait at the gate; what was decided before it opened is refused, to be
    decided again."""

    def __init__(self, writer: Appender, gate: Gate) -> None:
        self._writer = writer
        self._gate = gate

    async def append(self, drafts: Sequence[Draft]) -> tuple[Seq, ...]:
        """As that of the writer. Raises Unavailable after a wait."""
        if not self._gate.is_open:
            await self._gate.wait()
            raise Unavailable("A log was brought in meanwhile.", hint="Decide again.")
        return await self._writer.append(drafts)

    async def last_seq(self) -> Seq:
        """As that of the writer."""
        return await self._writer.last_seq()
