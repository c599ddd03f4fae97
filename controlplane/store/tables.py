"""The tables, as SQLAlchemy Core. The migrations make them; a test holds the two together.

`events` is the history: append-only, one row for each position of the log, with the exact bytes, in
partitions by position (`partitions.py`).
`log_epoch` counts the lives of the log: positions are unique only within one. `cursors` says how
far the history goes. The other tables hold the state of each aggregate after that position:
columns for people who write SQL, and `state`, the whole of it as JSON.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from tensorcast.schema.events import AggregateKind

metadata: Final = MetaData()
Moment: Final = DateTime(timezone=True)

events: Final = Table(
    "events",
    metadata,
    Column("log_epoch", Integer, primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("event_id", Uuid, nullable=False),
    Column("subject", Text, nullable=False),
    Column("aggregate_kind", Text, nullable=False),
    Column("aggregate_id", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("v", BigInteger, nullable=False),
    Column("at", Moment, nullable=False),
    Column("actor", Text, nullable=False),
    Column("cause", Uuid),
    Column("trace", Text),
    Column("artifact", Text),
    Column("node", Text),
    Column("data", JSONB, nullable=False),
    Column("payload", LargeBinary, nullable=False),
    Index("events_by_aggregate", "aggregate_kind", "aggregate_id", "seq"),
    Index("events_by_artifact", "artifact", "seq", postgresql_where=text("artifact IS NOT NULL")),
    Index("events_by_node", "node", "seq", postgresql_where=text("node IS NOT NULL")),
    Index("events_by_type", "type", "seq"),
    Index("events_by_actor", "actor", "seq"),
    Index("events_by_cause", "cause", postgresql_where=text("cause IS NOT NULL")),
    Index("events_by_id", "event_id"),
    Index("events_by_time", "at", "seq"),
    Index(
        "events_by_previous_artifact",
        text("(data ->> 'previous'::text)"),
        "seq",
        postgresql_where=text("aggregate_kind = 'key'::text"),
    ),
    postgresql_partition_by="RANGE (log_epoch, seq)",
)

chain: Final = Table(
    "chain",
    metadata,
    Column("log_epoch", Integer, primary_key=True),
    Column("last_seq", BigInteger, primary_key=True, autoincrement=False),
    Column("hashes", LargeBinary, nullable=False),
)
"""The hashes of the events up to `last_seq` that the row before does not have, 32 bytes each."""

cursors: Final = Table(
    "cursors",
    metadata,
    Column("name", Text, primary_key=True),
    Column("log_epoch", Integer, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("event_id", Uuid),
    Column("updated_at", Moment, nullable=False, server_default=text("now()")),
    Column("term", BigInteger, nullable=False, server_default=text("0")),
    Column("fold", Text),
    Column("room", BigInteger, nullable=False, server_default=text("0")),
)
"""`term` counts those who have sat in the seat of the writer that moves the cursor; `fold` names
the fold that the read models follow from; `room` is the last position that the partitions of
`events` are known to reach."""

archives: Final = Table(
    "archives",
    metadata,
    Column("log_epoch", Integer, primary_key=True, autoincrement=False),
    Column("last", BigInteger, primary_key=True, autoincrement=False),
    Column("first", BigInteger, nullable=False),
    Column("folder", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("at_first", Moment, nullable=False),
    Column("at_last", Moment, nullable=False),
    Column("made_at", Moment, nullable=False, server_default=text("now()")),
    Column("dropped_at", Moment),
    Column("told_at", Moment),
)
"""The files that hold the events from `first` to `last`. `digest` is the SHA-256 of a file; the
events are in `events` as well until `dropped_at`; `told_at` is when the log was told of it."""

dead_letters: Final = Table(
    "dead_letters",
    metadata,
    Column("log", Text, primary_key=True),
    Column("log_epoch", Integer, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("aggregate_kind", Text, nullable=False),
    Column("aggregate_id", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("fault", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("parked_at", Moment, nullable=False, server_default=text("now()")),
    Column("tried_at", Moment),
    Column("wanted_at", Moment),
    Index("dead_letters_by_aggregate", "log", "log_epoch", "aggregate_kind", "aggregate_id", "seq"),
)
"""The events that a projection could not take, and those that wait behind them. `log` is `log` or
`kv`; `wanted_at` is when somebody asked to try again."""


store_jobs: Final = Table(
    "store_jobs",
    metadata,
    Column("name", Text, primary_key=True),
    Column("phase", Text, nullable=False),
    Column("done", BigInteger, nullable=False),
    Column("total", BigInteger, nullable=False),
    Column("problem", Text),
    Column("started_at", Moment, nullable=False, server_default=text("now()")),
    Column("told_at", Moment, nullable=False, server_default=text("now()")),
    Column("ended_at", Moment),
)
"""What each long work on the store told of itself last."""


def _read_model(name: str, *columns: Column[object]) -> Table:
    return Table(
        name,
        metadata,
        Column("id", Text, primary_key=True),
        Column("status", Text, nullable=False),
        *columns,
        Column("seq", BigInteger, nullable=False),
        Column("state", JSONB, nullable=False),
        Index(f"{name}_by_seq", "seq"),
    )


artifacts: Final = _read_model(
    "artifacts",
    Column("kind", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("tensors", Integer, nullable=False),
    Column("pinned", Boolean, nullable=False),
    Column("labels", JSONB, nullable=False),
    Column("sealed_at", Moment, nullable=False),
)
keys: Final = _read_model(
    "keys",
    Column("artifact", Text, nullable=False, index=True),
    Column("moves", BigInteger, nullable=False),
    Column("moved_at", Moment, nullable=False),
)
replicas: Final = _read_model(
    "replicas",
    Column("artifact", Text, nullable=False, index=True),
    Column("node", Text, nullable=False, index=True),
    Column("tier", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("chunks_ready", BigInteger, nullable=False),
    Column("chunks_total", BigInteger, nullable=False),
)
operations: Final = _read_model(
    "operations",
    Column("kind", Text, nullable=False),
    Column("artifact", Text, nullable=False, index=True),
    Column("node", Text, nullable=False, index=True),
    Column("policy", Text, nullable=False),
    Column("cause", Uuid),
    Column("attempt", BigInteger, nullable=False),
    Column("bytes_moved", BigInteger, nullable=False),
    Column("fault", Text),
    Column("issued_at", Moment, nullable=False),
    Column("ended_at", Moment),
)
nodes: Final = _read_model(
    "nodes",
    Column("epoch", BigInteger, nullable=False),
    Column("address", Text, nullable=False),
    Column("cordoned", Boolean, nullable=False),
    Column("draining", Boolean, nullable=False),
    Column("labels", JSONB, nullable=False),
    Column("joined_at", Moment, nullable=False),
)
leases: Final = _read_model(
    "leases",
    Column("artifact", Text, nullable=False, index=True),
    Column("node", Text),
    Column("holder", Text, nullable=False),
    Column("ttl_s", Double, nullable=False),
    Column("acquired_at", Moment, nullable=False),
)

signals: Final = _read_model(
    "signals",
    Column("emitted", BigInteger, nullable=False),
    Column("actor", Text, nullable=False),
    Column("first_at", Moment, nullable=False),
    Column("last_at", Moment, nullable=False),
)
engines: Final = _read_model(
    "engines",
    Column("kind", Text, nullable=False),
    Column("node", Text, index=True),
    Column("life", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("url", Text, nullable=False),
    Column("weights", Text, nullable=False),
    Column("artifact", Text, index=True),
    Column("since", Moment),
    Column("registered_at", Moment, nullable=False),
)
plans: Final = _read_model(
    "plans",
    Column("name", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("steps", BigInteger, nullable=False),
    Column("fault", Text),
    Column("submitted_at", Moment, nullable=False),
    Column("ended_at", Moment),
)
namespaces: Final = _read_model(
    "namespaces",
    Column("changed_at", Moment, nullable=False),
)
policies: Final = _read_model(
    "policies",
    Column("parameters", JSONB, nullable=False),
    Column("reason", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("changed_at", Moment, nullable=False),
)

READ_MODELS: Final = {
    AggregateKind.ARTIFACT: artifacts,
    AggregateKind.KEY: keys,
    AggregateKind.REPLICA: replicas,
    AggregateKind.OPERATION: operations,
    AggregateKind.NODE: nodes,
    AggregateKind.LEASE: leases,
    AggregateKind.ENGINE: engines,
    AggregateKind.SIGNAL: signals,
    AggregateKind.PLAN: plans,
    AggregateKind.NAMESPACE: namespaces,
    AggregateKind.POLICY: policies,
}
"""The table that holds the states of a kind of aggregate."""

snapshots: Final = Table(
    "snapshots",
    metadata,
    Column("fold", Text, primary_key=True),
    Column("log_epoch", Integer, primary_key=True, autoincrement=False),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("after", BigInteger, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("event_id", Uuid, nullable=False),
    Column("skipped", BigInteger, nullable=False),
    Column("states", BigInteger, nullable=False),
    Column("parts", Integer, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("made_at", Moment, nullable=False, server_default=text("now()")),
    Index("snapshots_by_seq", "seq"),
)
snapshot_parts: Final = Table(
    "snapshot_parts",
    metadata,
    Column("fold", Text, primary_key=True),
    Column("log_epoch", Integer, primary_key=True, autoincrement=False),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("part", Integer, primary_key=True, autoincrement=False),
    Column("payload", LargeBinary, nullable=False),
)
