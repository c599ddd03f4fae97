"""Makes snapshots of the fold, so that any moment of the history opens soon.

It stands beside the persister, which never waits for it: it notes the views that the process has
anyway (views never change, so one can be kept at no cost), packs what changed in a thread, part by
part with pauses, and writes it over a connection of its own. A history that has no snapshots yet
(an older release made it, or the fold is another one now) is folded from its beginning, slowly.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from typing import Final

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from tensorcast.controlplane.core.snapshots import EVENTS_EVERY, Layer, base_of, pack
from tensorcast.controlplane.services.progress import Progress
from tensorcast.controlplane.store.engine import brief, connecting, make_engine
from tensorcast.controlplane.store.load import fold, read_history
from tensorcast.controlplane.store.snapshots import (
    event_id_at,
    find_bad,
    forget_from,
    forget_other_folds,
    last_layer,
    layer_of,
    open_snapshot,
    write_layer,
)
from tensorcast.controlplane.store.write import load_position
from tensorcast.log.follower import Follower
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.errors import TensorCastError
from tensorcast.schema.folds import fold_name
from tensorcast.schema.ids import Seq

POLL_S: Final = 1.0
RETRY_S: Final = 10.0
PART_PAUSE_S: Final = 0.005
FOLD_PAUSES: Final = 1
"""While it folds an old history it rests so many times as long as it works."""
NOTED_MAX: Final = 64
"""Most views that wait to be packed; beyond that it folds the history again later."""
_logger = logging.getLogger(__name__)


async def run_snapshots(
    follower: Follower,
    progress: Progress,
    postgres_url: str,
    *,
    events_every: int = EVENTS_EVERY,
) -> None:
    """Makes them for ever, while this process is the one that persists. Trouble is told in the log
    and in `Progress.snapshots`, and tried again: without snapshots the past opens slowly, and
    nothing else is lost. So no error ends this process, also none that nobody has thought of."""
    engine = make_engine(postgres_url, name="tensorcast snapshots", pooled=False)
    try:
        while True:
            try:
                await Snapshots(engine, follower, progress, events_every).run()
            except TensorCastError as error:
                _logger.info("snapshots: %s", error)
            except DBAPIError as error:
                _logger.warning("snapshots: Postgres refuses to write: %s.", brief(error))
            except Exception as error:
                _logger.exception("snapshots: one cannot be made")
                progress.snapshots = f"{type(error).__name__}: {error}"
            await asyncio.sleep(RETRY_S)
    finally:
        await engine.dispose()


class Snapshots:
    """One life of the maker, from its start to the first trouble."""

    def __init__(
        self, engine: AsyncEngine, follower: Follower, progress: Progress, events_every: int
    ) -> None:
        self._engine = engine
        self._follower = follower
        self._progress = progress
        self._every = events_every
        self._behind: ClusterView | None = None
        self._noted: deque[ClusterView] = deque()

    async def run(self) -> None:
        """Checks what there is, drops what is not to be believed, and makes what comes. Ends when
        another life of the log begins. Raises Unavailable and what Postgres raises."""
        await self._until(Seq(1))
        async with connecting(self._engine) as connection:
            await forget_other_folds(connection)
            epoch = (await load_position(connection)).log_epoch
            bad = await find_bad(connection, epoch)
            if bad is not None:
                await forget_from(connection, epoch, bad)
            last = await last_layer(connection, epoch)
            await connection.commit()
        noting = asyncio.create_task(self._note())
        try:
            await self._make_all(epoch, last)
        finally:
            noting.cancel()
            await asyncio.gather(noting, return_exceptions=True)

    async def _note(self) -> None:
        """Keeps a view every so many events, so that a burst is packed when there is time for it
        and never folded again: a view that is kept costs no more than what changes after it."""
        while True:
            live = self._follower.view
            last = self._noted[-1].at if self._noted else Seq(0)
            if live.at >= last + self._every and len(self._noted) < NOTED_MAX:
                self._noted.append(live)
            await asyncio.sleep(POLL_S)

    async def _make_all(self, epoch: int, last: Layer | None) -> None:
        while True:
            wanted = Seq((last.seq if last else 0) + self._every)
            await self._until(wanted)
            async with connecting(self._engine) as connection:
                if (await load_position(connection)).log_epoch != epoch:
                    return
                view = await self._view_from(connection, epoch, wanted)
                await self._until(view.at)
                last = await self._make(connection, epoch, view, last)

    async def _until(self, seq: Seq) -> None:
        """Waits until this process has written event `seq` to Postgres."""
        progress = self._progress
        while not progress.is_active or progress.committed_seq < seq:  # noqa: ASYNC110 - no event
            await asyncio.sleep(POLL_S)

    async def _view_from(self, connection: AsyncConnection, epoch: int, wanted: Seq) -> ClusterView:
        """A view at or soon after event `wanted`: one that was noted, or else that very one."""
        while self._noted and self._noted[0].at < wanted:
            self._noted.popleft()
        if self._noted and self._noted[0].at < wanted + self._every:
            self._behind = None
            return self._noted.popleft()
        view = self._behind or await open_snapshot(connection, epoch, wanted) or ClusterView()
        clock = asyncio.get_running_loop().time
        async for batch in read_history(connection, epoch, to_seq=wanted, after=view.at):
            began = clock()
            view = await asyncio.to_thread(fold, view, batch)
            await asyncio.sleep(FOLD_PAUSES * (clock() - began))
        self._behind = view
        return view

    async def _make(
        self, connection: AsyncConnection, epoch: int, view: ClusterView, last: Layer | None
    ) -> Layer:
        number = last.number + 1 if last else 1
        base = base_of(number)
        before = await layer_of(connection, epoch, base) if base else None
        after = before.seq if before else Seq(0)
        packed = pack(view, after)
        parts, states = [], 0
        while (found := await asyncio.to_thread(_next, packed)) is not None:
            parts.append(found[0])
            states += found[1]
            await asyncio.sleep(PART_PAUSE_S)
        layer = Layer(
            fold=fold_name(),
            log_epoch=epoch,
            number=number,
            after=after,
            seq=view.at,
            event_id=await event_id_at(connection, epoch, view.at),
            skipped=view.skipped,
            states=states,
            parts=len(parts),
        )
        await write_layer(connection, layer, parts)
        self._progress.snapshots = None
        return layer


def _next(packed: Iterator[tuple[bytes, int]]) -> tuple[bytes, int] | None:
    return next(packed, None)
