"""The tables of KV blocks. The migrations make them; a test holds the two together.

`kv_events` has one row for each event of the KV log, with its keys as one string of bytes; `data`
is the rest of the event. `kv_logs` counts the lives of the KV log and says how far each was copied.
`kv_nodes` says where each node last began anew, `kv_holdings` what it said to hold in all.
`engine_blocks` are the blocks in engines' own caches, `engine_views` how well those are known.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from tensorcast.controlplane.store.tables import metadata

Moment: Final = DateTime(timezone=True)

kv_logs: Final = Table(
    "kv_logs",
    metadata,
    Column("epoch", Integer, primary_key=True, autoincrement=False),
    Column("created", Text, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("updated_at", Moment, nullable=False, server_default=text("now()")),
)

kv_events: Final = Table(
    "kv_events",
    metadata,
    Column("log_epoch", Integer, primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("event_id", Uuid, nullable=False),
    Column("type", Text, nullable=False),
    Column("v", BigInteger, nullable=False),
    Column("at", Moment, nullable=False),
    Column("actor", Text, nullable=False),
    Column("cause", Uuid),
    Column("trace", Text),
    Column("node", Text),
    Column("epoch", BigInteger),
    Column("tier", Text),
    Column("space", Text),
    Column("blocks", BigInteger),
    Column("key_bytes", Integer),
    Column("keys", LargeBinary),
    Column("data", JSONB, nullable=False),
    Index("kv_events_by_node", "node", "seq"),
    Index("kv_events_by_space", "space", "seq"),
)

engine_views: Final = Table(
    "engine_views",
    metadata,
    Column("engine", Text, primary_key=True),
    Column("life", Text, nullable=False),
    Column("is_exact", Boolean, nullable=False),
    Column("reason", Text, nullable=False),
    Column("batch", BigInteger, nullable=False),
    Column("blocks", BigInteger, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("at", Moment, nullable=False),
)

engine_blocks: Final = Table(
    "engine_blocks",
    metadata,
    Column("engine", Text, primary_key=True),
    Column("medium", Text, primary_key=True),
    Column("layer_group", Integer, primary_key=True, autoincrement=False),
    Column("hash", LargeBinary, primary_key=True),
    Column("prefix", LargeBinary, nullable=False),
    Column("block_tokens", Integer, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Index("engine_blocks_by_prefix", "prefix"),
)

kv_nodes: Final = Table(
    "kv_nodes",
    metadata,
    Column("node", Text, primary_key=True),
    Column("epoch", BigInteger, nullable=False),
    Column("cleared_seq", BigInteger, nullable=False),
)

kv_holdings: Final = Table(
    "kv_holdings",
    metadata,
    Column("node", Text, primary_key=True),
    Column("tier", Text, primary_key=True),
    Column("space", Text, primary_key=True),
    Column("epoch", BigInteger, nullable=False),
    Column("blocks", BigInteger, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("at", Moment, nullable=False),
)
