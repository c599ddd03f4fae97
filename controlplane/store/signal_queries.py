"""What the API reads about signals. Raises Unavailable while Postgres is away; writes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from tensorcast.controlplane.store.archive_queries import search_seqs
from tensorcast.controlplane.store.archives import find_segments, hold_floor
from tensorcast.controlplane.store.engine import connecting
from tensorcast.controlplane.store.queries import read_epoch
from tensorcast.controlplane.store.tables import events
from tensorcast.schema.events import AggregateKind
from tensorcast.schema.ids import Seq


class _Signal(msgspec.Struct):
    data: dict[str, object] = {}


class _Wire(msgspec.Struct):
    data: _Signal


_decoder = msgspec.json.Decoder(_Wire)


async def find_signals(engine: AsyncEngine, seqs: Sequence[Seq]) -> Mapping[Seq, dict[str, object]]:
    """The data of the signals at these positions; those that are not there are left out.
    Raises NotFound when some lie in an archive that cannot be read."""
    kind = AggregateKind.SIGNAL.value
    async with connecting(engine) as connection:
        epoch = await read_epoch(connection)
        floor = await hold_floor(connection, epoch)
        statement = select(events.c.seq, events.c.payload).where(
            events.c.log_epoch == epoch,
            events.c.seq.in_(list(seqs)),
            events.c.aggregate_kind == kind,
        )
        rows = [(Seq(seq), payload) for seq, payload in await connection.execute(statement)]
        if old := [seq for seq in seqs if seq <= floor]:
            segments = await find_segments(connection, epoch, min(old), max(old))
            found = await asyncio.to_thread(search_seqs, segments, old, kind)
            rows += [(one.seq, one.payload) for one in found]
    return {seq: _decoder.decode(payload).data.data for seq, payload in rows}
