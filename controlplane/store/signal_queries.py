"""What the API reads about signals. Raises Unavailable while Postgres is away; writes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

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
    """The data of the signals at these positions; those that are not there are left out."""
    async with connecting(engine) as connection:
        statement = select(events.c.seq, events.c.payload).where(
            events.c.log_epoch == await read_epoch(connection),
            events.c.seq.in_(list(seqs)),
            events.c.aggregate_kind == AggregateKind.SIGNAL.value,
        )
        rows = (await connection.execute(statement)).all()
    return {Seq(row.seq): _decoder.decode(row.payload).data.data for row in rows}
