"""vLLM's own names of blocks, made without vLLM: `--prefix-caching-hash-algo sha256_cbor`.

A block's hash is the SHA-256 of the CBOR of (the hash before it, its tokens, its extra keys); the
chain begins with that of a seed. The tests hold it against vLLM's own. The default algorithm,
`sha256`, is over pickles, which differ between versions of Python; it is not made here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

ALGORITHM: Final = "sha256_cbor"
SEED: Final = "vllm-none-hash"
"""vLLM's, unless PYTHONHASHSEED is set where the engine runs."""

Item = None | int | str | bytes | tuple["Item", ...]
"""What the canonical CBOR of blocks is made of."""


def root_hash(seed: str = SEED) -> bytes:
    """What all chains of an engine with this seed begin with."""
    return hashlib.sha256(encode_cbor(seed)).digest()


def hash_blocks(
    tokens: Sequence[int],
    block_tokens: int,
    *,
    root: bytes,
    lora: tuple[str, str] | None = None,
    salt: str | None = None,
) -> list[bytes]:
    """The hashes of all whole blocks of a prompt of text. `lora`: name and path of its adapter."""
    found: list[bytes] = []
    parent = root
    adapter: tuple[Item, ...] = (("lora", *lora),) if lora is not None else ()
    for start in range(0, len(tokens) - block_tokens + 1, block_tokens):
        own: tuple[Item, ...] = (("cache_salt", salt),) if salt and not start else ()
        extra = adapter + own or None
        block: Item = (parent, tuple(tokens[start : start + block_tokens]), extra)
        parent = hashlib.sha256(encode_cbor(block)).digest()
        found.append(parent)
    return found


def encode_cbor(item: Item) -> bytes:
    """The canonical CBOR (RFC 8949, section 4.2) of an item."""
    match item:
        case None:
            return b"\xf6"
        case int():
            return _head(0, item) if item >= 0 else _head(1, -1 - item)
        case bytes():
            return _head(2, len(item)) + item
        case str():
            text = item.encode()
            return _head(3, len(text)) + text
        case tuple():
            return _head(4, len(item)) + b"".join(map(encode_cbor, item))


def _head(major: int, value: int) -> bytes:
    first = major << 5
    if value < 24:
        return bytes((first | value,))
    for extra, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if value < 1 << 8 * size:
            return bytes((first | extra,)) + value.to_bytes(size, "big")
    raise OverflowError(f"{value} has more than 64 bits")
