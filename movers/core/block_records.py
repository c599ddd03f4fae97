"""How KV blocks lie in a file: records, one after the other. Pure.

A record is a head, the packed key, and for a block its bytes. A head says how long all of it is and
has a digest over itself and the key, so whoever reads a file from its beginning finds each record,
and finds out where a crash or damage ended the row. The bytes of a block have a digest of their
own, which is checked when they are read. A record of a removal undoes what came before it, in this
file or an earlier one.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

import xxhash

from tensorcast.schema.blocks import BLOCK_BYTES_MAX, DIGEST_BYTES, PACKED_BYTES_MAX

MAGIC: Final = b"TCKB"
_BEGIN: Final = struct.Struct(f">4sBxHI{DIGEST_BYTES}s")
HEAD_BYTES: Final = _BEGIN.size + DIGEST_BYTES
NO_DIGEST: Final = bytes(DIGEST_BYTES)
WINDOW_BYTES: Final = HEAD_BYTES + PACKED_BYTES_MAX
"""So much from the start of a record always holds its head and key."""


class Kind(IntEnum):
    STORED = 1
    REMOVED = 2


class Record(NamedTuple):
    """What a head says. `data` is where the block's bytes begin, counted from the record's start;
    `end` where the next record does."""

    kind: Kind
    key: bytes
    size: int
    digest: bytes

    @property
    def data(self) -> int:
        return HEAD_BYTES + len(self.key)

    @property
    def end(self) -> int:
        return self.data + self.size


def pack_head(record: Record) -> bytes:
    """Head and key; the block's bytes follow."""
    begin = _BEGIN.pack(MAGIC, record.kind, len(record.key), record.size, record.digest)
    return begin + _check(begin, record.key) + record.key


def parse_head(window: bytes | memoryview) -> Record | None:
    """The record that begins here; None when none does, or it cannot be trusted. Lengths are
    checked before anything is made of them."""
    if len(window) < HEAD_BYTES:
        return None
    magic, kind, key_bytes, size, digest = _BEGIN.unpack_from(window)
    if magic != MAGIC or kind not in (Kind.STORED, Kind.REMOVED) or size > BLOCK_BYTES_MAX:
        return None
    if not 0 < key_bytes <= PACKED_BYTES_MAX or len(window) < HEAD_BYTES + key_bytes:
        return None
    key = bytes(window[HEAD_BYTES : HEAD_BYTES + key_bytes])
    if bytes(window[_BEGIN.size : HEAD_BYTES]) != _check(bytes(window[: _BEGIN.size]), key):
        return None
    if kind == Kind.REMOVED and size:
        return None
    return Record(Kind(kind), key, size, digest)


def _check(begin: bytes, key: bytes) -> bytes:
    return xxhash.xxh3_64_digest(begin + key)
