"""Where a control plane begins to follow the log: at a snapshot of the fold, not at event 1.

So a start takes as long as the states that there are need to be read, however long the log is. The
snapshot is that of this release's fold, and the log must have the very event after which it was
made; else the log is folded from its first event, as it is without Postgres. Snapshots are views as
followers have them, so what follows from here is what follows from the beginning.

A scheduler begins early enough: not after the last event that it has answered, and a minute before
it, for its guard counts what policies wrote in that time.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import Final

import msgspec
from sqlalchemy.ext.asyncio import AsyncEngine

from tensorcast.controlplane.core.guard import WINDOW_S
from tensorcast.controlplane.store import queries
from tensorcast.controlplane.store.cells import as_uuid
from tensorcast.controlplane.store.dead_letters import refold
from tensorcast.controlplane.store.engine import connecting, make_engine
from tensorcast.controlplane.store.rows import read_event
from tensorcast.controlplane.store.snapshots import last_layer, open_snapshot
from tensorcast.log.port import Log
from tensorcast.schema.api import AuditQuery
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.errors import TensorCastError
from tensorcast.schema.ids import Seq

_logger = logging.getLogger(__name__)


class _Opened(msgspec.Struct, frozen=True):
    """A view, and the id of the event after which it was made."""

    view: ClusterView
    event_id: str


_NOTHING: Final = ClusterView()


async def find_beginning(log: Log, postgres_url: str, *, reacted: Seq | None) -> ClusterView:
    """A view from which to follow the log; the empty one when there is none that is to be believed,
    or Postgres is away. `reacted` is the last event that the schedulers have answered (None: there
    is no scheduler here). Raises Unavailable when the log is away."""
    last = await log.last_seq()
    if not postgres_url or not last or reacted == 0:
        return _NOTHING
    engine = make_engine(postgres_url, name="tensorcast beginning", pooled=False)
    try:
        opened = await _open(engine, last, reacted)
    except TensorCastError as error:
        _logger.warning("the log is folded from its beginning: %s", error)
        return _NOTHING
    finally:
        await engine.dispose()
    if opened is None:
        return _NOTHING
    if not await _has(log, opened):
        _logger.warning("the snapshot of event %d is not of this log", opened.view.at)
        return _NOTHING
    return opened.view


async def _open(engine: AsyncEngine, last: Seq, reacted: Seq | None) -> _Opened | None:
    last = min(last, await queries.committed_seq(engine))
    if reacted is not None:
        last = await _minute_before(engine, min(last, reacted))
    async with connecting(engine) as connection:
        epoch = await queries.read_epoch(connection)
        view = await open_snapshot(connection, epoch, last)
        if view is None:
            return None
        layer = await last_layer(connection, epoch, view.at)
        if layer is None or layer.seq != view.at:
            return None
        return _Opened(await refold(connection, view, epoch), layer.event_id)


async def _minute_before(engine: AsyncEngine, seq: Seq) -> Seq:
    """The last event that is a minute older than that one; 0 when Postgres does not have it."""
    if not seq:
        return seq
    query = AuditQuery(since=Seq(seq - 1), before=Seq(seq + 1), limit=1)
    found = await queries.find_events(engine, query)
    if not found:
        return Seq(0)
    return min(seq, await queries.seq_at(engine, found[0].at - timedelta(seconds=WINDOW_S)))


async def _has(log: Log, opened: _Opened) -> bool:
    stored = await log.read_one(opened.view.at)
    if stored is None:
        return False
    return str(as_uuid(read_event(stored, datetime.min).id)) == opened.event_id
