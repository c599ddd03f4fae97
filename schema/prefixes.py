"""Names of prefixes that do not depend on an engine: a digest of all tokens up to a block's end.

An engine's own hashes depend on its algorithm and its seed, and events tell only a part of them. So
who watches an engine gives each of its blocks this name as well, and whoever has the tokens of a
prompt can ask which engine holds how much of it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

import msgspec

from tensorcast.schema.errors import InvalidArgument

PREFIX_BYTES: Final = 16
TOKENS_MAX: Final = 262_144
"""Most tokens of one prompt."""
BLOCK_TOKENS_MAX: Final = 65_536
_ROOT: Final = b"tensorcast prefix 1\n"


def root_prefix(block_tokens: int) -> bytes:
    """What the first block of `block_tokens` tokens follows on."""
    return blake2b(_ROOT + block_tokens.to_bytes(4, "big"), digest_size=PREFIX_BYTES).digest()


def next_prefix(parent: bytes, tokens: Sequence[int], extra: object = None) -> bytes:
    """The name of the block of these tokens after `parent`. `extra` is what else its content
    depends on (an adapter, a salt), None when nothing does. Raises InvalidArgument for what are no
    tokens."""
    try:
        packed = struct.pack(f"<{len(tokens)}I", *tokens)
    except struct.error as error:
        raise InvalidArgument("A token is a number from 0 to 4294967295.") from error
    rest = b"" if extra is None else msgspec.json.encode(extra)
    return blake2b(parent + packed + rest, digest_size=PREFIX_BYTES).digest()


def name_prefixes(
    tokens: Sequence[int], block_tokens: int, *, lora: str | None = None, salt: str | None = None
) -> list[bytes]:
    """The names of all whole blocks of a prompt, in order. `lora` is the adapter that it is for,
    `salt` its cache salt. Raises InvalidArgument."""
    if not 0 < block_tokens <= BLOCK_TOKENS_MAX:
        raise InvalidArgument(f"A block of {block_tokens} tokens cannot be.")
    if len(tokens) > TOKENS_MAX:
        raise InvalidArgument(
            f"A prompt of {len(tokens)} tokens is too long.", hint=f"{TOKENS_MAX} are the limit."
        )
    names: list[bytes] = []
    prefix = root_prefix(block_tokens)
    adapter = [lora] if lora else []
    for start in range(0, len(tokens) - block_tokens + 1, block_tokens):
        extra = [*adapter, salt] if salt and not start else adapter
        prefix = next_prefix(prefix, tokens[start : start + block_tokens], extra or None)
        names.append(prefix)
    return names
