"""What the API reads about KV blocks. All functions raise Unavailable while Postgres is away; none
writes."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import datetime
from typing import Final

import msgspec
from sqlalchemy import ColumnElement, Text, cast, null, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from tensorcast.controlplane.store.block_rows import Holding, Place
from tensorcast.controlplane.store.block_tables import kv_events, kv_holdings, kv_logs
from tensorcast.controlplane.store.cells import as_text
from tensorcast.controlplane.store.engine import connecting
from tensorcast.schema.api import LIST_MAX, BlockQuery, EventInfo
from tensorcast.schema.blocks import BlockKey, pack_key, pack_space
from tensorcast.schema.ids import EventId, NodeId, Seq, Tier

MENTIONS_MAX: Final = 500
KEYED_EVENTS_MAX: Final = 20
"""Most events of one answer that carries their keys."""

_MENTIONS: Final = text(
    """
    SELECT seq, at, type, e.node, e.epoch, tier, data -> 'sizes' AS sizes,
           "position"(keys, :tail) - 1 AS place,
           n.epoch = e.epoch AND e.seq >= n.cleared_seq AS counts
    FROM kv_events AS e JOIN kv_nodes AS n ON n.node = e.node
    WHERE log_epoch = :log_epoch AND space = :space AND key_bytes = :key_bytes
      AND (CAST(:node AS text) IS NULL OR e.node = :node)
      AND "position"(keys, :tail) > 0
    ORDER BY seq DESC LIMIT :limit
    """
)


class Mention(msgspec.Struct, frozen=True):
    """An event that named a block. `counts`: its node has not begun anew since."""

    seq: Seq
    at: datetime
    type: str
    node: NodeId
    epoch: int
    tier: Tier
    size_bytes: int
    counts: bool


async def holdings(engine: AsyncEngine) -> Mapping[Place, Holding]:
    """What each node said to hold of each space in each tier; what holds nothing is left out."""
    async with connecting(engine) as connection:
        found = await connection.execute(select(kv_holdings).where(kv_holdings.c.blocks > 0))
        return {
            (row.node, row.tier, row.space): Holding(
                row.epoch, row.blocks, row.size_bytes, row.seq, row.at
            )
            for row in found
        }


async def find_mentions(
    engine: AsyncEngine, key: BlockKey, node: NodeId | None
) -> tuple[Mention, ...]:
    """The last events that named a block, the newest first. Postgres looks through the keys of all
    events of its space (and node) that it has."""
    tail = pack_key(key)[len(pack_space(key.space)) :]
    found: list[Mention] = []
    async with connecting(engine) as connection:
        log_epoch = await _log_epoch(connection)
        asked = {
            "tail": tail,
            "log_epoch": log_epoch,
            "space": key.space,
            "key_bytes": len(tail),
            "node": None if node is None else as_text(node),
            "limit": MENTIONS_MAX,
        }
        for row in (await connection.execute(_MENTIONS, asked)).all():
            place: int | None = row.place
            if row.place % len(tail):  # perhaps only across two keys
                keys = kv_events.c["keys"]
                at = (kv_events.c.log_epoch == log_epoch, kv_events.c.seq == row.seq)
                place = find_key(await connection.scalar(select(keys).where(*at)) or b"", tail)
            if place is not None:
                size = _size(row.sizes, place // len(tail))
                found.append(
                    Mention(
                        Seq(row.seq),
                        row.at,
                        row.type,
                        NodeId(row.node),
                        row.epoch,
                        Tier(row.tier),
                        size,
                        row.counts,
                    )
                )
    return tuple(found)


def find_key(keys: bytes, key: bytes) -> int | None:
    """Where a key begins among keys of its length; None when its bytes are there only across two
    of them, or not at all."""
    place = keys.find(key)
    while place >= 0 and place % len(key):
        place = keys.find(key, place + 1)
    return place if place >= 0 else None


def _size(sizes: list[int] | None, number: int) -> int:
    if not sizes:
        return 0
    return sizes[number] if number < len(sizes) and len(sizes) > 1 else sizes[0]


async def find_block_events(engine: AsyncEngine, query: BlockQuery) -> tuple[EventInfo, ...]:
    """The KV events that meet all conditions of the query, in the order of the KV log. Their data
    tells the keys (as base64, as they are in the event) only when the query asks for them."""
    limit = max(0, min(query.limit, KEYED_EVENTS_MAX if query.with_keys else LIST_MAX))
    keys = kv_events.c["keys"] if query.with_keys else null().label("keys")
    async with connecting(engine) as connection:
        order = kv_events.c.seq.desc() if query.newest else kv_events.c.seq
        statement = (
            select(
                *(column for column in kv_events.columns if column.name not in ("keys", "data")),
                keys,
                cast(kv_events.c.data, Text).label("data"),
            )
            .where(kv_events.c.log_epoch == await _log_epoch(connection), *_conditions(query))
            .order_by(order)
            .limit(limit)
        )
        found = (await connection.execute(statement)).mappings().all()
    rows = reversed(found) if query.newest else found
    return tuple(_event_info({str(name): value for name, value in row.items()}) for row in rows)


def _conditions(query: BlockQuery) -> list[ColumnElement[bool]]:
    conditions = [kv_events.c.seq > query.since]
    if query.node is not None:
        conditions.append(kv_events.c.node == as_text(query.node))
    if query.space is not None:
        conditions.append(kv_events.c.space == as_text(query.space))
    if query.type is not None:
        conditions.append(kv_events.c.type == as_text(query.type))
    return conditions


_SHOWN: Final = ("node", "epoch", "tier", "space", "blocks", "key_bytes")


def _event_info(row: Mapping[str, object]) -> EventInfo:
    data: dict[str, object] = {name: row[name] for name in _SHOWN if row[name] is not None}
    rest = msgspec.json.decode(str(row["data"]))
    data |= rest if isinstance(rest, dict) else {"unknown": rest}
    if isinstance(row["keys"], bytes):
        data["keys"] = base64.b64encode(row["keys"]).decode()
    return msgspec.convert(
        {
            **{name: row[name] for name in ("seq", "type", "v", "at", "actor")},
            "id": EventId(str(row["event_id"])),
            "cause": None if row["cause"] is None else str(row["cause"]),
            "data": msgspec.Raw(msgspec.json.encode(data)),
        },
        EventInfo,
    )


async def _log_epoch(connection: AsyncConnection) -> int:
    """The life of the KV log that is there now; 0 when none has been met."""
    found = await connection.scalar(
        select(kv_logs.c.epoch).order_by(kv_logs.c.epoch.desc()).limit(1)
    )
    return int(found or 0)
