"""What inference engines hold in their own caches: events of the KV log, told by whoever watches
them (`engines/`), beside what nodes say of theirs.

A watcher begins with `EngineBlocksCleared`, under a `life` of its own; what another life says after
that does not count. Blocks have two names: the engine's own hash, by which it removes them, and the
name of the prefix (`prefixes.py`), by which they are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from tensorcast.schema.ids import EngineId
from tensorcast.schema.prefixes import BLOCK_TOKENS_MAX, PREFIX_BYTES

ENGINE_EVENT_BLOCKS_MAX: Final = 4096
HASH_BYTES_MAX: Final = 64
GROUP_MAX: Final = 1023
UNNAMED: Final = bytes(PREFIX_BYTES)
"""Instead of the name of a prefix whose beginning was never told."""

Natural = Annotated[int, Meta(ge=0)]
Life = Annotated[str, Meta(min_length=1, max_length=64)]
Medium = Annotated[str, Meta(min_length=1, max_length=32)]
Group = Annotated[int, Meta(ge=0, le=GROUP_MAX)]
HashBytes = Annotated[int, Meta(ge=1, le=HASH_BYTES_MAX)]
BlockTokens = Annotated[int, Meta(ge=1, le=BLOCK_TOKENS_MAX)]


class _Hashed(msgspec.Struct, frozen=True, kw_only=True):
    """`hashes` holds the engine's own names, `hash_bytes` bytes each; `batch` is the position in
    the engine's own record up to which this is told; `held_blocks` counts what it holds then."""

    engine: EngineId
    life: Life
    batch: Natural
    medium: Medium
    group: Group
    hash_bytes: HashBytes
    hashes: bytes
    held_blocks: Natural

    @property
    def count(self) -> int:
        return len(self.hashes) // self.hash_bytes

    def iterate_hashes(self) -> Iterator[bytes]:
        """The engine's own names, in order."""
        for start in range(0, len(self.hashes), self.hash_bytes):
            yield self.hashes[start : start + self.hash_bytes]

    def _check_hashes(self) -> None:
        if not self.hashes or len(self.hashes) % self.hash_bytes:
            raise ValueError(f"{len(self.hashes)} bytes are no hashes of {self.hash_bytes} each")
        if self.count > ENGINE_EVENT_BLOCKS_MAX:
            raise ValueError(f"{self.count} blocks are too many for one event")


class EngineBlocksStored(_Hashed, frozen=True, kw_only=True):
    """The engine holds these blocks of `block_tokens` tokens in a medium of its own (`gpu`, `cpu`).
    `prefixes` has the name of each, 16 bytes (zeros: the name is not known)."""

    block_tokens: BlockTokens
    prefixes: bytes

    def __post_init__(self) -> None:
        self._check_hashes()
        if len(self.prefixes) != PREFIX_BYTES * self.count:
            raise ValueError(f"{len(self.prefixes)} bytes name no {self.count} prefixes")

    def iterate_prefixes(self) -> Iterator[bytes]:
        """The names of the prefixes, in the order of the hashes."""
        for start in range(0, len(self.prefixes), PREFIX_BYTES):
            yield self.prefixes[start : start + PREFIX_BYTES]


class EngineBlocksEvicted(_Hashed, frozen=True, kw_only=True):
    """The engine does not hold these blocks in this medium any more."""

    def __post_init__(self) -> None:
        self._check_hashes()


class EngineBlocksCleared(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing that was told of the engine's blocks counts any more. With `is_exact` it holds what
    follows and nothing else; without, events were lost, and it may hold more than is told.
    `reason` says why it begins anew."""

    engine: EngineId
    life: Life
    batch: Natural
    is_exact: bool
    reason: Annotated[str, Meta(max_length=200)] = ""


EngineBlockEvent = EngineBlocksStored | EngineBlocksEvicted | EngineBlocksCleared

ENGINE_BLOCK_EVENT_TYPES: Final[dict[str, type[EngineBlockEvent]]] = {
    "engine_blocks.stored": EngineBlocksStored,
    "engine_blocks.evicted": EngineBlocksEvicted,
    "engine_blocks.cleared": EngineBlocksCleared,
}
