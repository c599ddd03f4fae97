"""Whether the log goes on where Postgres stands.

A log that was made anew, or restored from an older copy, gives positions that Postgres knows to
other events: to go on from there would mix two histories.
"""

from __future__ import annotations

from typing import Final

from tensorcast.controlplane.store.cells import as_uuid
from tensorcast.controlplane.store.engine import connecting, make_engine
from tensorcast.controlplane.store.rows import read_event
from tensorcast.controlplane.store.write import Position, load_position
from tensorcast.log.identity import now
from tensorcast.log.port import Log
from tensorcast.schema.errors import Corrupt

REMEDY: Final = (
    "Restore the NATS folder that belongs to it, or start afresh with `tcctl down --purge`."
)


async def check_start(log: Log, postgres_url: str) -> None:
    """As `check_continuity`, with the position that the migrated database holds. Raises
    Unavailable as well when Postgres is away."""
    engine = make_engine(postgres_url, name="tensorcast start", pooled=False)
    try:
        async with connecting(engine) as connection:
            position = await load_position(connection)
        await check_continuity(log, position)
    finally:
        await engine.dispose()


async def check_continuity(log: Log, position: Position) -> None:
    """Makes sure that the log is the one whose events Postgres has. Raises Corrupt when it is not,
    Unavailable when the log cannot be asked."""
    if position.seq == 0:
        return
    last = await log.last_seq()
    stored = await log.read_one(position.seq) if last >= position.seq else None
    if stored is None:
        what = f"The log ends at event {last}, but Postgres has {position.seq} events of it"
    elif as_uuid(read_event(stored, now()).id) != position.event_id:
        what = f"The log has another event at position {position.seq} than Postgres"
    else:
        return
    raise Corrupt(f"{what}: it is older, made anew, or another cluster's.", hint=REMEDY)
