"""The hash chain as its table keeps it."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from tensorcast.controlplane.store.tables import chain
from tensorcast.schema.chain import GENESIS, HASH_BYTES
from tensorcast.schema.errors import Corrupt


async def load_hash(connection: AsyncConnection, log_epoch: int, seq: int) -> bytes:
    """The hash of the event at `seq`; for 0 the one that this life of the log goes on from. Raises
    Corrupt when the chain does not have it."""
    found = await find_hash(connection, log_epoch, seq)
    await connection.commit()
    if found is None:
        raise Corrupt(
            f"The hash of event {seq} is missing in Postgres.",
            hint="Somebody has changed its tables: `tcctl audit verify` says where.",
        )
    return found


async def find_hash(connection: AsyncConnection, log_epoch: int, seq: int) -> bytes | None:
    """As `load_hash`; None for a hash that the chain does not have."""
    statement = select(chain.c.last_seq, chain.c.hashes).limit(1)
    seq = max(seq, 0)
    if seq == 0:
        statement = statement.where(chain.c.log_epoch < log_epoch).order_by(
            chain.c.log_epoch.desc(), chain.c.last_seq.desc()
        )
    else:
        statement = statement.where(
            chain.c.log_epoch == log_epoch, chain.c.last_seq >= seq
        ).order_by(chain.c.last_seq)
    row = (await connection.execute(statement)).one_or_none()
    if row is None:
        return None if seq else GENESIS
    end = len(row.hashes) - (HASH_BYTES * (row.last_seq - seq) if seq else 0)
    found: bytes = row.hashes[end - HASH_BYTES : end] if end >= HASH_BYTES else b""
    return found or None
