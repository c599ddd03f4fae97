"""What must be true of a world after all that happened to it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf

from sqlalchemy import select

from chaos.load import Record
from chaos.registers import Kind, Operation, is_linearizable
from conformance.log import read_until
from stores import stored_view
from tensorcast.controlplane.store.engine import connecting, make_engine
from tensorcast.controlplane.store.load import fold
from tensorcast.controlplane.store.queries import committed_seq
from tensorcast.controlplane.store.tables import events
from tensorcast.log.jetstream import JetStreamLog
from tensorcast.log.port import Stored
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.codec import decode
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.errors import TensorCastError
from tensorcast.schema.events import ArtifactSealed, KeyMoved, KeyRemoved

QUIET_S = 1.5
SETTLE_S_MAX = 90.0
READS_MAX = 20
Row = tuple[int, str, bytes]


async def settle(log: JetStreamLog, database: str) -> int:
    """Waits until nothing is appended any more and Postgres has all. Returns the last position."""
    engine = make_engine(database, name="chaos", pooled=False)
    try:
        async with asyncio.timeout(SETTLE_S_MAX):
            while True:
                last = await log.last_seq()
                await asyncio.sleep(QUIET_S)
                with suppress(TensorCastError):
                    if await committed_seq(engine) == last == await log.last_seq():
                        return last
    finally:
        await engine.dispose()


async def check(log: JetStreamLog, database: str, record: Record, last: int) -> list[str]:
    """Everything that is wrong, in words. `last` events were there before; what has come since (an
    operation that is tried again) is judged as well."""
    rows, view = await read_postgres(database)
    end = await log.last_seq()
    stored = await read_until(log, min(end, max(last, len(rows))))
    recorded = [decode(one.payload, one.seq) for one in stored]
    found = [
        *compare(stored, rows),
        *find_lost(recorded, record),
        *compare_views(tuple(stored), view),
        *explain_keys(recorded, record),
    ]
    return [*found, *tell_keys(recorded, record)] if found else []


async def read_postgres(database: str) -> tuple[list[Row], ClusterView]:
    """The history and the read models as of one moment: when nothing came between the two."""
    engine = make_engine(database, name="chaos", pooled=False)
    query = select(events.c.seq, events.c.subject, events.c.payload).order_by(events.c.seq)
    try:
        for _ in range(READS_MAX):
            async with connecting(engine) as connection:
                rows: list[Row] = [tuple(row) for row in await connection.execute(query)]
            view = await stored_view(engine)
            if view.at == len(rows):
                break
            await asyncio.sleep(QUIET_S)
        return rows, view
    finally:
        await engine.dispose()


def compare(stored: Sequence[Stored], rows: Sequence[Row]) -> Iterator[str]:
    """Postgres has the log: each event once, in order, to the byte."""
    expected = [(one.seq, one.subject, one.payload) for one in stored]
    if [row[0] for row in rows] != list(range(1, len(rows) + 1)):
        yield "the positions in Postgres have gaps or repeats"
    for one, row in zip(expected, rows, strict=False):
        if one != row:
            yield f"Postgres has another event at {one[0]} than the log"
            break
    if len(expected) != len(rows):
        yield f"the log has {len(expected)} events, Postgres {len(rows)}"


def find_lost(recorded: Sequence[Recorded], record: Record) -> Iterator[str]:
    """What was acknowledged is there, once, where it was said to be."""
    where: dict[str, list[int]] = {}
    for one in recorded:
        where.setdefault(one.id, []).append(one.seq)
    for event, seqs in where.items():
        if len(seqs) > 1:
            yield f"event {event} is there {len(seqs)} times, at {seqs}"
    for event, seq in record.acknowledged.items():
        if where.get(event) != [seq]:
            yield f"event {event} was acknowledged at {seq} and is at {where.get(event)}"
    sealed = {one.event.artifact for one in recorded if isinstance(one.event, ArtifactSealed)}
    for artifact in record.sealed.keys() - sealed:
        yield f"artifact {artifact} was acknowledged to a put and is not there"


def compare_views(stored: tuple[Stored, ...], view: ClusterView) -> Iterator[str]:
    """Every history is legal, and the read models hold what the fold of the log gives."""
    folded = fold(ClusterView(), stored)
    if folded.skipped:
        yield f"{folded.skipped} events cannot follow what was before them"
    if view != folded:
        for name in ClusterView.__struct_fields__:
            if getattr(view, name) != getattr(folded, name):
                yield f"the read models differ from the fold in {name}"


def explain_keys(recorded: Sequence[Recorded], record: Record) -> Iterator[str]:
    """Each key behaved as one register. Of changes without an answer the log tells which happened;
    all else is judged by what clients saw alone."""
    happened = {one.actor for one in recorded}
    for key, operations in record.operations.items():
        told = [settle_doubt(actor, one, happened) for actor, one in operations]
        known = [one for one in told if one is not None]
        verdict = {True: None, False: "is not linearizable", None: "is undecided"}
        if wrong := verdict[is_linearizable(known)]:
            yield f"key {key} {wrong} ({len(known)} operations)"


def tell_keys(recorded: Sequence[Recorded], record: Record) -> Iterator[str]:
    """What clients wrote down of each key and what the log says of it, a line each."""
    for one in recorded:
        if isinstance(one.event, KeyMoved | KeyRemoved) and one.event.key in record.operations:
            yield f"log {one.seq} {one.actor} {one.event}"
    for key, operations in record.operations.items():
        for actor, one in sorted(operations, key=lambda told: told[1].began):
            yield f"{key} {actor} {one}"


def settle_doubt(actor: str, operation: Operation, happened: set[str]) -> Operation | None:
    """A change without an answer that made no event changed nothing."""
    if operation.is_sure or operation.kind not in (Kind.MOVED, Kind.CLEARED):
        return operation
    return replace(operation, ended=inf, is_sure=True) if actor in happened else None
