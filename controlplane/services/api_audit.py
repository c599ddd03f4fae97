"""Verbs that prove the log, copy it and bring it back.

The control plane only reads and hashes here: what the hashes must be, whoever asks decides from
signed heads (`client/audit_calls.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sqlalchemy.ext.asyncio import AsyncEngine

from tensorcast.controlplane.services.api_desk import AFTER_S_MAX, Desk
from tensorcast.controlplane.services.signer import HeadFile
from tensorcast.controlplane.services.verifiers import Verifiers
from tensorcast.controlplane.store import extent
from tensorcast.controlplane.store.engine import connecting
from tensorcast.schema.api_audit import (
    HASHES_MAX,
    HEADS_MAX,
    SPAN_EVENTS_MAX,
    Extent,
    ExtentQuery,
    HashQuery,
    HeadsPage,
    HeadsQuery,
    RowsPage,
    RowsQuery,
    SpanInfo,
    VerifySpan,
)
from tensorcast.schema.errors import InvalidArgument, Unavailable


class Heads(Protocol):
    """The signed heads beside the log."""

    async def read(self, after: int, limit: int) -> list[str]: ...


@dataclass(frozen=True, kw_only=True)
class Proofs:
    """What proofs are made of: the tables, the verifiers, and the heads. `key` is the public key
    of this control plane; it and `head_file` are None where no heads are signed."""

    engine: AsyncEngine
    verifiers: Verifiers
    heads: Heads
    head_file: HeadFile | None
    key: str | None


def _proofs(desk: Desk) -> Proofs:
    if desk.proofs is None:
        raise Unavailable("This control plane has no history.", hint="Ask one with Postgres.")
    return desk.proofs


async def show_extent(desk: Desk, request: ExtentQuery) -> Extent:
    """How far the history goes."""
    proofs = _proofs(desk)
    await desk.history.wait_committed(request.after, AFTER_S_MAX)
    async with connecting(proofs.engine) as connection:
        lives = await extent.read_lives(connection)
    return Extent(cluster=desk.cluster, lives=lives, key=proofs.key)


async def verify_span(desk: Desk, request: VerifySpan) -> SpanInfo:
    """Checks a span of the history in as many processes as there are CPUs."""
    events = request.last - request.first + 1
    if not 1 <= events <= SPAN_EVENTS_MAX:
        raise InvalidArgument(
            f"A span of {events} events cannot be verified at once.",
            hint=f"Ask for 1 to {SPAN_EVENTS_MAX}.",
        )
    return await _proofs(desk).verifiers.verify(request)


async def show_hashes(desk: Desk, request: HashQuery) -> tuple[str | None, ...]:
    """The hashes of some events."""
    if len(request.seqs) > HASHES_MAX:
        raise InvalidArgument(
            f"{len(request.seqs)} hashes are too many.", hint=f"Ask for {HASHES_MAX} at most."
        )
    async with connecting(_proofs(desk).engine) as connection:
        return await extent.read_hashes(connection, request)


async def show_heads(desk: Desk, request: HeadsQuery) -> HeadsPage:
    """The next signed heads."""
    proofs = _proofs(desk)
    if request.source not in ("log", "file") or request.after < 0:
        raise InvalidArgument("Heads are in the log or in the file.", hint="Say `log` or `file`.")
    if request.source == "log":
        return HeadsPage(heads=tuple(await proofs.heads.read(request.after, HEADS_MAX)))
    if proofs.head_file is None:
        return HeadsPage(heads=())
    return HeadsPage(heads=tuple(proofs.head_file.read(request.after, HEADS_MAX)))


async def show_rows(desk: Desk, request: RowsQuery) -> RowsPage:
    """The next events as they were published."""
    async with connecting(_proofs(desk).engine) as connection:
        return await extent.read_rows(connection, request)
