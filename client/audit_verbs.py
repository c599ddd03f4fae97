"""What clients ask the control plane to prove the log and to copy it; part of `ControlPlane`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from tensorcast.schema.api_audit import (
    Extent,
    ExtentQuery,
    HashQuery,
    HeadsPage,
    HeadsQuery,
    Imported,
    ImportEvents,
    RowsPage,
    RowsQuery,
    SpanInfo,
    VerifySpan,
    unpack,
)
from tensorcast.schema.ids import Seq

if TYPE_CHECKING:
    from tensorcast.client.position import Position

T = TypeVar("T")
WORK_S = 300.0
"""Most that one request may take that reads many events."""


class _Asks(Protocol):
    @property
    def position(self) -> Position: ...

    async def ask(
        self, verb: str, request: msgspec.Struct, answer: type[T], *, timeout: float | None = None
    ) -> T: ...

    async def ask_once(
        self, verb: str, request: msgspec.Struct, answer: type[T], *, timeout: float
    ) -> T: ...


class AuditVerbs:
    """Questions about the record itself, put by `ask`."""

    async def extent(self: _Asks) -> Extent:
        """How far the history goes; what this client wrote is in it."""
        return await self.ask("audit.extent", ExtentQuery(after=self.position.seq), Extent)

    async def verify_span(self: _Asks, log_epoch: int, first: int, last: int) -> SpanInfo:
        """Has the events of a span read and hashed."""
        request = VerifySpan(log_epoch=log_epoch, first=Seq(first), last=Seq(last))
        return await self.ask_once("audit.verify", request, SpanInfo, timeout=WORK_S)

    async def hashes(self: _Asks, log_epoch: int, seqs: Sequence[Seq]) -> tuple[str | None, ...]:
        """The hashes of some events; None for those that the chain does not have."""
        request = HashQuery(log_epoch=log_epoch, seqs=tuple(seqs))
        return await self.ask("audit.hashes", request, tuple[str | None, ...])

    async def heads(self: _Asks, source: str) -> list[str]:
        """All signed heads of a source, `log` or `file`, as they were found."""
        found: list[str] = []
        while True:
            request = HeadsQuery(source=source, after=len(found))
            page = await self.ask("audit.heads", request, HeadsPage)
            if not page.heads:
                return found
            found.extend(page.heads)

    async def bring_in(self: _Asks, request: ImportEvents) -> Imported:
        """Has events appended as they are. Safe to repeat."""
        done = await self.ask_once("log.import", request, Imported, timeout=WORK_S)
        self.position.advance(done.last)
        return done

    async def rows(self: _Asks, log_epoch: int, after: Seq, last: Seq) -> RowsPage:
        """The next events after `after` as they were published."""
        request = RowsQuery(log_epoch=log_epoch, after=after, last=last)
        page = await self.ask_once("audit.rows", request, RowsPage, timeout=WORK_S)
        if not any(one.packed for one in page.events):
            return page
        events = tuple(
            msgspec.structs.replace(one, payload=unpack(one.packed), packed=b"")
            if one.packed
            else one
            for one in page.events
        )
        return msgspec.structs.replace(page, events=events)
