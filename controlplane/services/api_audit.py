"""Verbs that prove the log, copy it and bring it back.

The control plane only reads and hashes here: what the hashes must be, whoever asks decides from
signed heads (`client/audit_calls.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import msgspec
from sqlalchemy.ext.asyncio import AsyncEngine

from tensorcast.controlplane.services.api_desk import AFTER_S_MAX, Desk
from tensorcast.controlplane.services.api_history import SEEN_S_MAX
from tensorcast.controlplane.services.signer import HeadFile
from tensorcast.controlplane.services.verifiers import Verifiers
from tensorcast.controlplane.services.workers import Workers
from tensorcast.controlplane.store import extent
from tensorcast.controlplane.store.engine import connecting
from tensorcast.log.port import APPEND_EVENTS_MAX
from tensorcast.schema.api_audit import (
    HASHES_MAX,
    HEADS_MAX,
    SPAN_EVENTS_MAX,
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
from tensorcast.schema.codec import decode
from tensorcast.schema.errors import Conflict, InvalidArgument, Timeout, Unavailable
from tensorcast.schema.ids import Seq
from tensorcast.schema.subjects import log_subjects
from tensorcast.schema.wording import tell_count

IMPORT_S_MAX = 90.0
"""For each of three waits; who asks waits 300."""
BEHIND_EVENTS_MAX = 20_000
"""The history may be so far behind a log that is brought in."""


class Heads(Protocol):
    """The signed heads beside the log."""

    async def read(self, after: int, limit: int) -> list[str]: ...


class RawLog(Protocol):
    """The log, for events that were published somewhere else."""

    async def append_raw(self, first: Seq, events: Sequence[tuple[str, bytes]]) -> Seq: ...

    async def last_seq(self) -> Seq: ...


@dataclass(frozen=True, kw_only=True)
class Proofs:
    """What proofs are made of: the log, the tables, the verifiers, the workers, and the heads.
    `key` is the public key of this control plane; it and `head_file` are None where no heads are
    signed. `archive_dir` is where old events go when nobody says where."""

    log: RawLog
    engine: AsyncEngine
    verifiers: Verifiers
    workers: Workers
    heads: Heads
    head_file: HeadFile | None
    key: str | None
    archive_dir: str | None = None


def require_proofs(desk: Desk) -> Proofs:
    """What proofs are made of. Raises Unavailable when this control plane has none."""
    if desk.proofs is None:
        raise Unavailable("This control plane has no history.", hint="Ask one with Postgres.")
    return desk.proofs


async def show_extent(desk: Desk, request: ExtentQuery) -> Extent:
    """How far the history goes; for a moment it is waited for what the live view has shown."""
    proofs = require_proofs(desk)
    await desk.history.wait_committed(request.after, AFTER_S_MAX)
    with suppress(Timeout):
        await desk.history.wait_committed(desk.follower.view.at, SEEN_S_MAX)
    async with connecting(proofs.engine) as connection:
        lives = await extent.read_lives(connection)
    former = proofs.head_file.former_keys() if proofs.head_file else ()
    return Extent(cluster=desk.cluster, lives=lives, key=proofs.key, former=former)


async def verify_span(desk: Desk, request: VerifySpan) -> SpanInfo:
    """Checks a span of the history in as many processes as there are CPUs."""
    events = request.last - request.first + 1
    if not 1 <= events <= SPAN_EVENTS_MAX:
        raise InvalidArgument(
            f"A span of {events} events cannot be verified at once.",
            hint=f"Ask for 1 to {SPAN_EVENTS_MAX}.",
        )
    return await require_proofs(desk).verifiers.verify(request)


async def show_hashes(desk: Desk, request: HashQuery) -> tuple[str | None, ...]:
    """The hashes of some events."""
    if len(request.seqs) > HASHES_MAX:
        raise InvalidArgument(
            f"{len(request.seqs)} hashes are too many.", hint=f"Ask for {HASHES_MAX} at most."
        )
    async with connecting(require_proofs(desk).engine) as connection:
        return await extent.read_hashes(connection, request)


async def show_heads(desk: Desk, request: HeadsQuery) -> HeadsPage:
    """The next signed heads."""
    proofs = require_proofs(desk)
    if request.source not in ("log", "file") or request.after < 0:
        raise InvalidArgument("Heads are in the log or in the file.", hint="Say `log` or `file`.")
    if request.source == "log":
        return HeadsPage(heads=tuple(await proofs.heads.read(request.after, HEADS_MAX)))
    if proofs.head_file is None:
        return HeadsPage(heads=())
    return HeadsPage(heads=tuple(proofs.head_file.read(request.after, HEADS_MAX)))


async def import_events(desk: Desk, request: ImportEvents) -> Imported:
    """Appends events of another cluster of this name, in order, while the gate is closed: the first
    ones close it, the last ones open it. Safe to repeat until then, from event 1 on too. Raises
    Conflict for a log that has other events, Corrupt for what is no event."""
    proofs = require_proofs(desk)
    if not 1 <= len(request.events) <= APPEND_EVENTS_MAX or request.first < 1:
        raise InvalidArgument(
            f"{len(request.events)} events cannot be brought in at once.",
            hint=f"Give 1 to {APPEND_EVENTS_MAX}, from position 1 on.",
        )
    if request.is_packed:
        events = tuple((subject, unpack(packed)) for subject, packed in request.events)
        request = msgspec.structs.replace(request, events=events, is_packed=False)
    _check_events(desk.cluster, request)
    if desk.gate.is_open:
        if last := await proofs.log.last_seq():
            raise Conflict(
                f"The cluster is not empty: its log has {tell_count(last, 'event')}.",
                hint="Bring a log into a new cluster: `tcctl up --nodes 0` makes one.",
            )
        await desk.gate.close()
    committed = Seq(max(0, request.first - BEHIND_EVENTS_MAX))
    await desk.history.wait_committed(committed, IMPORT_S_MAX)
    last = await proofs.log.append_raw(request.first, request.events)
    if last >= request.total:
        await desk.history.wait_committed(last, IMPORT_S_MAX)
        await desk.follower.wait_for(last, IMPORT_S_MAX)
        await desk.gate.release()
    return Imported(last=last)


def _check_events(cluster: str, request: ImportEvents) -> None:
    """Raises InvalidArgument, Corrupt for what would break off everybody who reads the log."""
    prefix = log_subjects(cluster).removesuffix(">")
    for offset, (subject, payload) in enumerate(request.events):
        is_whole = all(subject.split(".")) and set(subject).isdisjoint(" *>\r\n\t\0")
        if not subject.startswith(prefix) or not is_whole:
            raise InvalidArgument(
                f"{subject!r} is no subject of the log of {cluster}.",
                hint="Bring a log into a cluster of the same name.",
            )
        decode(payload, Seq(request.first + offset))


async def show_rows(desk: Desk, request: RowsQuery) -> RowsPage:
    """The next events as they were published."""
    async with connecting(require_proofs(desk).engine) as connection:
        return await extent.read_rows(connection, request)
