"""What the blocks of a node need from others, and what stands there when nobody gives it.

Keys are packed (`schema/blocks.pack_key`). Everything here may be called from any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tensorcast.schema.ids import NodeId, Tier


class BlockReporter(Protocol):
    """Hears what a node holds; nothing here blocks or raises. Whoever stores or drops blocks in a
    tier reports it: the slabs for `Tier.DRAM`, a spill for `Tier.DISK`."""

    def stored(self, tier: Tier, blocks: Sequence[tuple[bytes, int]]) -> None:
        """These blocks (key, size in bytes) can be read in this tier from now on."""
        ...

    def evicted(self, tier: Tier, keys: Sequence[bytes]) -> None:
        """These blocks cannot be read in this tier any more."""
        ...

    def damaged(self, tier: Tier, keys: Sequence[bytes]) -> None:
        """As `evicted`, because their bytes do not match their digests."""
        ...

    def cleared(self) -> None:
        """The node holds no block any more, in any tier."""
        ...


class BlockLocator(Protocol):
    """Knows what other nodes hold, from what they reported. It may be out of date; nothing here
    blocks or raises."""

    def locate(self, keys: Sequence[bytes]) -> list[tuple[NodeId, ...]]:
        """For each key the other nodes that hold it, the best first; () for none."""
        ...

    def address(self, node: NodeId) -> str | None:
        """Where a node serves its blocks over TCP (`host:port`); None when it does not, or is not
        up."""
        ...


class BlockSpill(Protocol):
    """Blocks on the node's disk, within a budget of its own: it drops the coldest when that is
    reached. The methods may block for the disk; a disk that fails is a block that is not there.
    What a spill stores and drops, it reports itself."""

    def write(self, key: bytes, digest: bytes, memory: memoryview) -> bool:
        """Stores a block with its digest; False when it could not be. Does nothing (True) when the
        block is there already. `memory` does not change until it returns."""
        ...

    def read(self, key: bytes, target: memoryview) -> bool:
        """Fills `target`, as long as the block, and checks the digest; False when the block is not
        there, has another size or is damaged (it is dropped then)."""
        ...

    def remove(self, keys: Sequence[bytes]) -> None:
        """Forgets blocks. Unknown ones are ignored."""
        ...

    def contains(self, key: bytes) -> bool:
        """Whether `read` can be expected to work. Never blocks."""
        ...

    def size(self, key: bytes) -> int:
        """The block's size in bytes; 0 when it is not there. Never blocks."""
        ...

    def keys_of(self, beginning: bytes) -> list[bytes]:
        """The blocks whose keys begin so."""
        ...


class NullReporter:
    """Tells nobody."""

    def stored(self, tier: Tier, blocks: Sequence[tuple[bytes, int]]) -> None:
        pass

    def evicted(self, tier: Tier, keys: Sequence[bytes]) -> None:
        pass

    def damaged(self, tier: Tier, keys: Sequence[bytes]) -> None:
        pass

    def cleared(self) -> None:
        pass


class NullLocator:
    """Knows of no other node."""

    def locate(self, keys: Sequence[bytes]) -> list[tuple[NodeId, ...]]:
        return [()] * len(keys)

    def address(self, node: NodeId) -> str | None:
        return None


class NullSpill:
    """A disk without room."""

    def write(self, key: bytes, digest: bytes, memory: memoryview) -> bool:
        return False

    def read(self, key: bytes, target: memoryview) -> bool:
        return False

    def remove(self, keys: Sequence[bytes]) -> None:
        pass

    def contains(self, key: bytes) -> bool:
        return False

    def size(self, key: bytes) -> int:
        return 0

    def keys_of(self, beginning: bytes) -> list[bytes]:
        return []
