"""The journal's file: what lies in it, and how it is read and written."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from tensorcast.movers.seals import OUTCOMES_MAX, AcceptedSeal, SealOutcome
from tensorcast.schema.commands import Command
from tensorcast.schema.ids import Epoch, EventId, ReplicaId, Seq

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS outbox (position INTEGER PRIMARY KEY, report BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS segments (replica TEXT PRIMARY KEY, segment TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS log (one INTEGER PRIMARY KEY, created TEXT NOT NULL, seq INTEGER);
CREATE TABLE IF NOT EXISTS life (one INTEGER PRIMARY KEY, life BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS seals
    (position INTEGER PRIMARY KEY, ticket TEXT UNIQUE NOT NULL, seal BLOB, outcome BLOB);
"""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A command on its way into the log, and the envelope of the one event it leads to."""

    id: EventId
    at: datetime
    actor: str
    command: Command
    cause: EventId | None = None


class KnownLog(msgspec.Struct, frozen=True):
    """The log that a node belongs to (`created` tells logs of one name apart, and one into which
    events were put back from what it was before), and how far the node has seen it."""

    created: str
    seq: Seq


class LastLife(msgspec.Struct, frozen=True):
    """The epoch that the node has had, or has tried to get, where its data port listened, the
    secret half of its key for tickets, and the epoch that the log knows it by."""

    epoch: Epoch = Epoch(0)
    address: str = ""
    seed: str = ""
    joined: Epoch = Epoch(0)


class JournalFile:
    """The sqlite file. Every method blocks for a disk write; one thread calls them all."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.executescript(_TABLES)

    def read_outbox(self) -> list[tuple[int, Report]]:
        """Reports that the log has not acknowledged, with their positions."""
        rows = self._db.execute("SELECT position, report FROM outbox ORDER BY position")
        decoder = msgspec.json.Decoder(Report)
        return [(position, decoder.decode(report)) for position, report in rows]

    def read_segments(self) -> dict[ReplicaId, str]:
        return dict(self._db.execute("SELECT replica, segment FROM segments"))

    def add(self, rows: Sequence[tuple[int, bytes]]) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        with self._db:
            self._db.executemany("INSERT INTO outbox VALUES (?, ?)", rows)

    def remove_up_to(self, position: int) -> None:
        self._db.execute("DELETE FROM outbox WHERE position <= ?", (position,))

    def keep(self, replica: ReplicaId, segment: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO segments VALUES (?, ?)", (replica, segment))

    def forget(self, replica: ReplicaId) -> None:
        self._db.execute("DELETE FROM segments WHERE replica = ?", (replica,))

    def read_seals(self) -> dict[str, AcceptedSeal]:
        """Accepted puts that are not sealed yet, by ticket."""
        rows = self._db.execute("SELECT seal FROM seals WHERE seal IS NOT NULL ORDER BY position")
        seals = [msgspec.json.decode(seal, type=AcceptedSeal) for (seal,) in rows]
        return {seal.ticket: seal for seal in seals}

    def read_outcomes(self) -> dict[str, SealOutcome]:
        """What came of the others."""
        rows = self._db.execute("SELECT ticket, outcome FROM seals WHERE outcome IS NOT NULL")
        return {ticket: msgspec.json.decode(found, type=SealOutcome) for ticket, found in rows}

    def keep_seal(self, ticket: str, seal: bytes) -> None:
        self._db.execute("INSERT INTO seals (ticket, seal) VALUES (?, ?)", (ticket, seal))

    def settle_seal(self, ticket: str, outcome: bytes) -> None:
        """Notes an outcome, and forgets those of long ago."""
        self._db.execute("BEGIN IMMEDIATE")
        with self._db:
            self._db.execute(
                "UPDATE seals SET seal = NULL, outcome = ? WHERE ticket = ?", (outcome, ticket)
            )
            self._db.execute(
                "DELETE FROM seals WHERE outcome IS NOT NULL AND position <= "
                "(SELECT max(position) FROM seals) - ?",
                (OUTCOMES_MAX,),
            )

    def read_log(self) -> KnownLog | None:
        """The log that the node belongs to; None before it knows one."""
        row = self._db.execute("SELECT created, seq FROM log").fetchone()
        return None if row is None else KnownLog(row[0], Seq(row[1]))

    def keep_log(self, log: KnownLog) -> None:
        """Remembers that log."""
        row = (log.created, log.seq)
        self._db.execute("INSERT OR REPLACE INTO log VALUES (1, ?, ?)", row)

    def read_life(self) -> LastLife:
        """The last life of the node."""
        row = self._db.execute("SELECT life FROM life").fetchone()
        return LastLife() if row is None else msgspec.json.decode(row[0], type=LastLife)

    def keep_life(self, life: LastLife) -> None:
        """Remembers this one."""
        written = msgspec.json.encode(life)
        self._db.execute("INSERT OR REPLACE INTO life VALUES (1, ?)", (written,))

    def close(self) -> None:
        self._db.close()
