"""What a mover remembers of the log: the states of its view, in a file beside its journal.

A mover begins by it, so its start takes no longer when the log is long: it follows the log from
there, if that is the very log (`find_in`). Without the log it serves what it has by what it
remembers, and goes on from there when the log is back. What is remembered is a view that once was;
it is a few seconds old when the mover is killed.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from tensorcast.log.follower import Follower
from tensorcast.log.restore import RestorableLog
from tensorcast.movers.journal import Journal
from tensorcast.schema.cluster import ClusterView, State, assemble
from tensorcast.schema.codec import decode
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.errors import Corrupt, Unavailable
from tensorcast.schema.events import UnknownEvent, aggregate_of
from tensorcast.schema.folds import MAPS, STATES, fold_name
from tensorcast.schema.ids import EventId, Seq
from tensorcast.schema.parking import Parked

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS about (one INTEGER PRIMARY KEY, about BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS states
    (name TEXT, id TEXT, state BLOB NOT NULL, PRIMARY KEY (name, id)) WITHOUT ROWID;
"""
PART_STATES: Final = 500
"""So many states are encoded before others have their turn on the event loop."""
Row = tuple[str, str, bytes]

_logger = logging.getLogger(__name__)


class About(msgspec.Struct, frozen=True, kw_only=True):
    """Which log was remembered (`created` tells two of one name apart), how far, by which fold.
    `shown` are events up to there that are reports of this node which its journal still has;
    `event` is the one at `seq`."""

    cluster: str
    created: str
    fold: str
    seq: Seq
    shown: tuple[EventId, ...] = ()
    event: EventId | None = None


class Remembered(msgspec.Struct, frozen=True):
    """A view of the log that was `created` then, after `event`; it shows these events of the
    journal's."""

    created: str
    view: ClusterView
    shown: tuple[EventId, ...] = ()
    event: EventId | None = None


async def find_in(log: RestorableLog, remembered: Remembered | None) -> Remembered | None:
    """What is remembered, if a life may follow this log from there; None when it is to be folded
    anew: it is another log, or has another event there, or something stands still, which this
    release may be able to take. Raises Unavailable."""
    if remembered is None or remembered.created != log.created or remembered.view.parked:
        return None
    stored = await log.read_one(remembered.view.at)
    if stored is None or remembered.event is None:
        return None
    try:
        is_same = decode(stored.payload, stored.seq).id == remembered.event
    except Corrupt:
        return None
    return remembered if is_same else None


def recall(path: Path, cluster: str) -> Remembered | None:
    """What the last life remembered of the log of a cluster; None when there is nothing that this
    release can use. Blocks."""
    if not path.exists():
        return None
    try:
        db = sqlite3.connect(path, isolation_level=None)
        try:
            about = _read_about(db)
            if about is None or (about.cluster, about.fold) != (cluster, fold_name()):
                return None
            rows = db.execute("SELECT name, state FROM states")
            decoders = {name: msgspec.json.Decoder(cls) for name, cls in STATES.items()}
            states = [decoders[name].decode(state) for name, state in rows]
        finally:
            db.close()
    except (sqlite3.Error, msgspec.MsgspecError, LookupError) as error:
        _logger.warning("what was remembered of the log cannot be read: %s", error)
        return None
    view = assemble(states, at=about.seq)
    return Remembered(about.created, view, about.shown, about.event)


def _read_about(db: sqlite3.Connection) -> About | None:
    row = db.execute("SELECT about FROM about").fetchone()
    return None if row is None else msgspec.json.decode(row[0], type=About)


class _File:
    """The sqlite file. Every method blocks; one thread calls them all."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.executescript(_TABLES)

    def write(self, about: About, rows: Sequence[Row], *, is_whole: bool) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        with self._db:
            if is_whole:
                self._db.execute("DELETE FROM states")
            self._db.execute("DELETE FROM states WHERE name = 'parked'")  # it has what there is
            self._db.executemany("INSERT OR REPLACE INTO states VALUES (?, ?, ?)", rows)
            written = msgspec.json.encode(about)
            self._db.execute("INSERT OR REPLACE INTO about VALUES (1, ?)", (written,))

    def close(self) -> None:
        self._db.close()


class Recollection:
    """Keeps the file as new as the last `keep`. Owns it; belongs to one event loop. A disk that
    takes nothing leaves the file as old as it is."""

    def __init__(
        self,
        path: Path,
        cluster: str,
        follower: Follower,
        journal: Journal,
        begun: Remembered | None = None,
    ) -> None:
        """`begun` is what the file has, if the follower goes on from there."""
        self._cluster = cluster
        self._journal = journal
        self._shown: set[EventId] = set()
        self._is_blind = False
        self._follower = follower
        self._file: _File | None = None
        self._path = path
        self._news = follower.subscribe()
        self._view = follower.view
        self._changed: dict[tuple[str, str], None] = {}
        self._last = begun.event if begun else None
        self._kept = begun.view.at if begun else Seq(0)
        self._is_whole = begun is None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="recollection")

    @property
    def seen(self) -> Seq:
        """The last event that `keep` would write."""
        return self._view.at

    async def watch(self) -> None:
        """Notes what changes in the view, for ever."""
        while True:
            try:
                async for view, recorded in self._news:
                    self._note(view, recorded)
            except Unavailable:  # it fell behind: then all is written
                self._is_whole = self._is_blind = True
                self._news = self._follower.subscribe()
                self._view, self._last = self._news.view, None

    def _note(self, view: ClusterView, recorded: Recorded) -> None:
        self._view, self._last = view, recorded.id
        if self._journal.is_awaited(recorded.id):
            self._shown.add(recorded.id)
        if not self._is_whole and not isinstance(recorded.event, UnknownEvent):
            kind, id_ = aggregate_of(recorded.event)
            self._changed[MAPS[kind], id_] = None

    async def keep(self, created: str) -> None:
        """Writes what has changed since the last time; `created` is that of the log."""
        view = self._view
        # Events of which nobody knows any more whether they were in the journal are waited for.
        self._is_blind = self._is_blind and self._journal.pending > 0
        if view.at <= self._kept or self._is_blind:
            return
        self._shown = {id_ for id_ in self._shown if self._journal.is_awaited(id_)}
        is_whole, changed = self._is_whole, self._changed
        self._is_whole, self._changed = False, {}
        about = About(
            cluster=self._cluster,
            created=created,
            fold=fold_name(),
            seq=view.at,
            shown=tuple(self._shown),
            event=self._last,
        )
        rows = await _encode(_all(view) if is_whole else _some(view, changed))
        try:
            await asyncio.get_running_loop().run_in_executor(
                self._thread, lambda: self._write(about, rows, is_whole)
            )
        except sqlite3.Error as error:
            _logger.warning("the view of the log is not remembered: %s", error)
            self._is_whole = True
        else:
            self._kept = view.at

    def _write(self, about: About, rows: Sequence[Row], is_whole: bool) -> None:
        if self._file is None:
            self._file = _File(self._path)
        self._file.write(about, rows, is_whole=is_whole)

    def close(self) -> None:
        """Waits for a write that is under way. Safe to repeat."""
        self._news.close()
        self._thread.shutdown(wait=True)
        if self._file is not None:
            self._file.close()
            self._file = None


def _all(view: ClusterView) -> Iterable[tuple[str, str, State | Parked]]:
    return ((name, id_, state) for name in STATES for id_, state in getattr(view, name).items())


def _some(
    view: ClusterView, changed: Iterable[tuple[str, str]]
) -> Iterable[tuple[str, str, State | Parked]]:
    for name, id_ in changed:
        state = getattr(view, name).get(id_)
        if state is not None:
            yield name, id_, state
    for id_, parked in view.parked.items():
        yield "parked", id_, parked


async def _encode(states: Iterable[tuple[str, str, State | Parked]]) -> list[Row]:
    encode = msgspec.json.Encoder().encode
    rows: list[Row] = []
    for name, id_, state in states:
        rows.append((name, id_, encode(state)))
        if len(rows) % PART_STATES == 0:
            await asyncio.sleep(0)
    return rows
