"""A node's blocks in this process, as a mover wires them, and clients of it."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import xxhash

from tensorcast.client.blocks import Blocks
from tensorcast.movers.blocks.base import NullSpill
from tensorcast.movers.blocks.node import NodeBlocks
from tensorcast.movers.core.block_eviction import BlockPolicy
from tensorcast.movers.memory.pool import Pool
from tensorcast.movers.transports.tcp.server import TcpServer
from tensorcast.schema.block_wire import MAGIC
from tensorcast.schema.blocks import BlockPut, pack_keys
from tensorcast.schema.ids import NodeId, Tier

KIB = 1 << 10
MIB = 1 << 20


class Told:
    """A reporter that keeps what each tier holds."""

    def __init__(self) -> None:
        self.held: dict[Tier, dict[bytes, int]] = {tier: {} for tier in Tier}
        self.broken: list[tuple[Tier, bytes]] = []

    def stored(self, tier: Tier, blocks: Sequence[tuple[bytes, int]]) -> None:
        self.held[tier].update(blocks)

    def evicted(self, tier: Tier, keys: Sequence[bytes]) -> None:
        for key in keys:
            del self.held[tier][key]  # a block is told once

    def damaged(self, tier: Tier, keys: Sequence[bytes]) -> None:
        self.evicted(tier, keys)
        self.broken += [(tier, key) for key in keys]

    def cleared(self) -> None:
        for held in self.held.values():
            held.clear()


class Map:
    """A locator that tests fill in."""

    def __init__(self) -> None:
        self.holders: dict[bytes, tuple[NodeId, ...]] = {}
        self.addresses: dict[str, str] = {}

    def locate(self, keys: Sequence[bytes]) -> list[tuple[NodeId, ...]]:
        return [self.holders.get(key, ()) for key in keys]

    def address(self, node: NodeId) -> str | None:
        return self.addresses.get(node)


class MemorySpill:
    """A disk in memory; `room` blocks at most."""

    def __init__(self, room: int = 1 << 20) -> None:
        self.blocks: dict[bytes, tuple[bytes, bytes]] = {}
        self.room = room
        self._lock = threading.Lock()

    def write(self, key: bytes, digest: bytes, memory: memoryview) -> bool:
        with self._lock:
            if key not in self.blocks and len(self.blocks) >= self.room:
                return False
            self.blocks.setdefault(key, (digest, bytes(memory)))
            return True

    def read(self, key: bytes, target: memoryview) -> bool:
        digest, content = self.blocks.get(key, (b"", b""))
        if len(content) != target.nbytes or xxhash.xxh3_64_digest(content) != digest:
            self.blocks.pop(key, None)
            return False
        target[:] = content
        return True

    def remove(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self.blocks.pop(key, None)

    def contains(self, key: bytes) -> bool:
        return key in self.blocks

    def size(self, key: bytes) -> int:
        return len(self.blocks[key][1]) if key in self.blocks else 0

    def keys_of(self, beginning: bytes) -> list[bytes]:
        return [key for key in self.blocks if key.startswith(beginning)]


class BlockNode:
    """One node: `blocks`, a data port at `address`, and a socket for clients."""

    def __init__(
        self,
        folder: Path,
        name: str = "n1",
        capacity: int = 32 * MIB,
        policy: BlockPolicy = BlockPolicy.LRU,
        spill: MemorySpill | NullSpill | None = None,
        pool: Pool | None = None,
    ) -> None:
        self.name = name
        self.pool = pool or Pool(max(capacity, 2 * MIB))
        self.told = Told()
        self.map = Map()
        self.socket = folder / f"{name}.sock"
        self.blocks = NodeBlocks(
            self.pool,
            capacity,
            policy,
            "test",
            NodeId(name),
            reporter=self.told,
            locator=self.map,
            spill=spill or NullSpill(),
        )
        self.blocks.open(self.socket)
        self.server = TcpServer(
            "127.0.0.1:0",
            None,  # nobody pulls artifacts here
            "test",
            NodeId(name),
            guests={MAGIC: self.blocks.serve_peer},
        )
        self.address = self.server.address
        self.clients: list[Blocks] = []

    def connect(self) -> Blocks:
        client = Blocks(str(self.socket), self.name, "test", "user:ada@test")
        self.clients.append(client)
        return client

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.server.close()
        self.blocks.close()
        self.pool.close()


@contextmanager
def block_node(**options) -> Iterator[BlockNode]:
    """One node in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="tc-kv-") as folder:
        node = BlockNode(Path(folder), **options)
        try:
            yield node
        finally:
            node.close()


def flip(node: BlockNode, key: bytes) -> None:
    """Flips a bit of a block in the node's memory, after its digest was made."""
    store = node.blocks._store
    wait_until(lambda: store.states([key])[0] and not store.stats().writing)
    while node.blocks._keeper.digest():
        pass
    with store.memory(store.state.index.entries[key]) as memory:
        memory[1000] ^= 1


def keys_for(numbers: Sequence[int], space: str = "m") -> list[bytes]:
    """Packed keys."""
    return pack_keys(space, [number.to_bytes(16, "big") for number in numbers])


def content_of(number: int, size: int = 64 * KIB) -> bytes:
    """The bytes of block `number`: no two are equal."""
    return (number.to_bytes(8, "big") * (size // 8 + 1))[:size]


def counts(client: Blocks) -> dict[str, int]:
    """The mover's counts."""
    return msgspec.json.decode(client.count(), type=dict[str, int])


def wait_until(is_true: Callable[[], bool]) -> None:
    for _ in range(3000):
        if is_true():
            return
        threading.Event().wait(0.01)
    raise AssertionError("It did not come about.")


def put(client: Blocks, numbers, size: int = 64 * KIB, **more) -> list[BlockPut]:
    return client.put(keys_for(numbers), [content_of(n, size) for n in numbers], **more)


def check(client: Blocks, numbers, size: int = 64 * KIB) -> None:
    views = client.get(keys_for(numbers))
    assert all(view is not None for view in views)
    assert all(bytes(v) == content_of(n, size) for v, n in zip(views, numbers, strict=True))
