"""Keys of KV blocks: what an inference engine calls a prefix block, and its one binary form.

A key packs into bytes that begin with its space, so that all blocks of a space share a beginning,
and all keys of one engine's worker have one length and differ at the end only.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec

from tensorcast.schema.errors import Corrupt, InvalidArgument

SPACE_BYTES_MAX = 64
SHOWN_MAX = 2 * SPACE_BYTES_MAX
"""So many characters of a wrong value are shown in a sentence."""
PREFIX_BYTES_MIN = 8
PREFIX_BYTES_MAX = 32
PART_MAX = 0xFFFF
BLOCK_BYTES_MAX = 64 << 20
"""The size of one block, at most."""
DIGEST_BYTES = 8
"""A block's digest: XXH3-64, big-endian."""

_BYTES = {bytes}
_PART = struct.Struct(">HH")
PACKED_BYTES_MIN = 1 + 1 + _PART.size + PREFIX_BYTES_MIN
PACKED_BYTES_MAX = 1 + SPACE_BYTES_MAX + _PART.size + PREFIX_BYTES_MAX


class BlockPut(StrEnum):
    """What came of putting one block: it is stored now, it was there already, or it was rejected
    (no room, or a size that cannot be)."""

    STORED = "stored"
    EXISTED = "existed"
    REJECTED = "rejected"


class BlockKey(msgspec.Struct, frozen=True):
    """Names one block: the KV of one run of tokens, for one group of layers of one rank.

    `space` names what blocks belong to and must change whenever they stop being exchangeable: the
    artifact id of the weights and the layout of the KV, for example (an engine's own hash does not
    contain the version of the weights). `prefix` is the engine's hash of all tokens up to the
    block's last one, 8 to 32 bytes. Raises InvalidArgument.
    """

    space: str
    prefix: bytes
    layer_group: int = 0
    rank: int = 0

    def __post_init__(self) -> None:
        _check_space(self.space)
        _check_part("layer_group", self.layer_group)
        _check_part("rank", self.rank)
        _check_prefix(self.prefix)

    def __str__(self) -> str:
        return f"{self.space}/{self.layer_group}/{self.rank}/{self.prefix.hex()}"


def pack_key(key: BlockKey) -> bytes:
    """The binary form: the one in indexes, on wires and in events."""
    return pack_part(key.space, key.layer_group, key.rank) + key.prefix


def pack_keys(
    space: str, prefixes: Iterable[bytes], layer_group: int = 0, rank: int = 0
) -> list[bytes]:
    """The binary forms of many keys of one part, without an object for each. Raises
    InvalidArgument."""
    part = pack_part(space, layer_group, rank)
    found = list(prefixes)
    lengths = set(map(len, found)) if set(map(type, found)) == _BYTES else {0}
    if not PREFIX_BYTES_MIN <= min(lengths) <= max(lengths) <= PREFIX_BYTES_MAX:
        for prefix in found:  # says which
            _check_prefix(prefix)
    return [part + prefix for prefix in found]


def unpack_key(packed: bytes) -> BlockKey:
    """The key with this binary form. Raises Corrupt."""
    if not PACKED_BYTES_MIN <= len(packed) <= PACKED_BYTES_MAX:
        raise Corrupt(f"A block's key of {len(packed)} bytes cannot be.")
    end = 1 + packed[0]
    try:
        layer_group, rank = _PART.unpack_from(packed, end)
        return BlockKey(
            space=packed[1:end].decode("ascii"),
            prefix=bytes(packed[end + _PART.size :]),
            layer_group=layer_group,
            rank=rank,
        )
    except (struct.error, UnicodeDecodeError, InvalidArgument) as error:
        raise Corrupt(f"The block's key {packed.hex()} cannot be read.") from error


def name_key(packed: bytes) -> str:
    """A packed key as people read it; in hex when it is none."""
    try:
        return str(unpack_key(packed))
    except Corrupt:
        return packed.hex()


def pack_space(space: str) -> bytes:
    """What the binary form of every key of a space begins with, and of no other key. Raises
    InvalidArgument."""
    _check_space(space)
    return bytes((len(space),)) + space.encode("ascii")


def pack_part(space: str, layer_group: int = 0, rank: int = 0) -> bytes:
    """What the keys of one group of layers of one rank begin with. Raises InvalidArgument."""
    _check_part("layer_group", layer_group)
    _check_part("rank", rank)
    return pack_space(space) + _PART.pack(layer_group, rank)


def is_packed(keys: Sequence[bytes]) -> bool:
    """Whether all have the length of a binary form; what is in them is not looked at."""
    lengths = set(map(len, keys))
    return not lengths or PACKED_BYTES_MIN <= min(lengths) <= max(lengths) <= PACKED_BYTES_MAX


def _check_space(space: str) -> None:
    is_text = isinstance(space, str) and space.isascii() and space.isprintable()
    if not is_text or not 0 < len(space) <= SPACE_BYTES_MAX or " " in space:
        raise InvalidArgument(
            f"{_shorten(space)} is no space of blocks.",
            hint=f"Use 1 to {SPACE_BYTES_MAX} printable ASCII characters without blanks.",
        )


def _check_part(name: str, value: int) -> None:
    if not isinstance(value, int) or not 0 <= value <= PART_MAX:
        raise InvalidArgument(f"{name} is {value!r}.", hint=f"Use a number from 0 to {PART_MAX}.")


def _check_prefix(prefix: bytes) -> None:
    is_hash = isinstance(prefix, bytes)
    if not is_hash or not PREFIX_BYTES_MIN <= len(prefix) <= PREFIX_BYTES_MAX:
        raise InvalidArgument(
            f"The prefix hash is {_shorten(prefix)}.",
            hint=f"Use {PREFIX_BYTES_MIN} to {PREFIX_BYTES_MAX} bytes.",
        )


def _shorten(value: object) -> str:
    """A value as it is shown in a sentence."""
    text = repr(value)
    size = f" (of {len(value)})" if isinstance(value, str | bytes) else ""
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}...{size}"
