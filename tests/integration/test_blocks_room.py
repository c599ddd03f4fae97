"""Room for KV blocks: what goes when a node is full, what never goes, and what comes back."""

from __future__ import annotations

import threading

import pytest

from block_nodes import (
    KIB,
    MIB,
    MemorySpill,
    block_node,
    check,
    content_of,
    counts,
    keys_for,
    put,
    wait_until,
)
from tensorcast.client import blocks
from tensorcast.movers.blocks import desk
from tensorcast.movers.core.block_eviction import BlockPolicy
from tensorcast.movers.memory.pool import Lent, Pool
from tensorcast.schema.blocks import BlockPut
from tensorcast.schema.ids import Tier

STORED, REJECTED = BlockPut.STORED, BlockPut.REJECTED


@pytest.mark.parametrize("policy", BlockPolicy)
def test_a_full_node_gives_up_blocks_and_never_passes_its_budget(policy: BlockPolicy):
    with block_node(capacity=8 * MIB, policy=policy) as node:
        client = node.connect()
        for first in range(0, 600, 20):
            assert put(client, range(first, first + 20)) == [STORED] * 20
            stats = counts(client)
            assert stats["slab_bytes"] <= 8 * MIB
            assert node.pool.stats().used_bytes <= 8 * MIB
        held = client.exists(keys_for(range(600)))
        assert 60 < sum(held) <= 128
        assert held[-20:] == [True] * 20
        assert set(node.told.held[Tier.DRAM]) == {
            key for key, is_held in zip(keys_for(range(600)), held, strict=True) if is_held
        }


def test_lru_keeps_what_is_used():
    with block_node(capacity=8 * MIB) as node:
        client = node.connect()
        put(client, range(10))
        for first in range(100, 700, 20):
            put(client, range(first, first + 20))
            assert all(view is not None for view in client.get(keys_for(range(10))))


def test_lfu_keeps_what_was_used_often():
    with block_node(capacity=8 * MIB, policy=BlockPolicy.LFU) as node:
        client = node.connect()
        put(client, range(10))
        for _ in range(10):
            client.get(keys_for(range(10)))
        for first in range(100, 400, 20):
            put(client, range(first, first + 20))
        assert all(client.exists(keys_for(range(10))))


def test_priority_keeps_what_is_dear():
    with block_node(capacity=8 * MIB, policy=BlockPolicy.PRIORITY) as node:
        client = node.connect()
        put(client, range(20), priority=9)
        for first in range(100, 700, 20):
            put(client, range(first, first + 20), priority=1)
        assert all(client.exists(keys_for(range(20))))


def test_what_finds_no_room_is_rejected_alone():
    with block_node(capacity=4 * MIB) as node:
        client = node.connect()
        put(client, range(3), MIB)
        views = client.get(keys_for(range(3)))
        found = put(client, range(10, 14), MIB)
        assert STORED in found
        assert REJECTED in found
        assert put(client, [50], 5 * MIB) == [REJECTED]
        assert [bytes(v) for v in views] == [content_of(n, MIB) for n in range(3)]
        del views
        client.get([])
        wait_until(lambda: put(client, range(20, 22), MIB) == [STORED] * 2)


def test_slabs_go_to_the_sizes_that_need_them():
    with block_node(capacity=16 * MIB) as node:
        client = node.connect()
        put(client, range(300), 64 * KIB)
        for first in range(1000, 1040, 2):
            assert put(client, range(first, first + 2), MIB) == [STORED] * 2
        assert put(client, range(2000, 2100), 4 * KIB) == [STORED] * 100
        assert counts(client)["slab_bytes"] <= 16 * MIB
        assert sum(client.exists(keys_for(range(1000, 1040)))) > 4


class SlowPool(Pool):
    """A machine that is too busy to make memory, but for the first segment, until `gate` is
    open."""

    def __init__(self, capacity_bytes: int) -> None:
        super().__init__(capacity_bytes)
        self.gate = threading.Event()
        self.asked = 0

    def allocate(self, size_bytes: int, *, is_touched: bool = True) -> Lent:
        self.asked += 1
        if self.asked > 1:
            assert self.gate.wait(20)
        return super().allocate(size_bytes, is_touched=is_touched)


def test_memory_is_made_before_it_is_missed_and_no_put_waits_for_it():
    pool = SlowPool(256 * MIB)
    with block_node(capacity=256 * MIB, pool=pool) as node:
        try:
            client = node.connect()
            for n in range(14):
                assert put(client, [n], MIB) == [STORED]  # the first 16 MiB were not waited for
                assert counts(client)["slab_bytes"] <= 32 * MIB
            wait_until(lambda: pool.asked == 2)
        finally:
            pool.gate.set()
        wait_until(lambda: pool.stats().used_bytes >= 32 * MIB)  # and more: slots are lent ahead
        for n in range(14, 200):
            assert put(client, [n], MIB) == [STORED]
        check(client, range(200), MIB)
        assert counts(client)["slab_bytes"] <= 256 * MIB


def test_what_does_not_fit_goes_to_disk_and_comes_back():
    spill = MemorySpill()
    with block_node(capacity=8 * MIB, spill=spill) as node:
        client = node.connect()
        for first in range(0, 400, 20):
            put(client, range(first, first + 20))
        assert len(spill.blocks) > 250
        assert all(client.exists(keys_for(range(400))))
        for first in range(0, 400, 20):
            check(client, range(first, first + 20))
        assert counts(client)["slab_bytes"] <= 8 * MIB
        into = [bytearray(64 * KIB) for _ in range(400)]
        assert all(client.get_into(keys_for(range(400)), into))  # more than the memory holds
        assert into == [content_of(n) for n in range(400)]
        assert client.evict(keys_for(range(400))) == 400
        assert not spill.blocks


def test_a_space_goes_as_a_whole_in_memory_and_on_disk(monkeypatch):
    for module in (blocks, desk):
        monkeypatch.setattr(module, "KEYS_MAX", 64)
    spill = MemorySpill()
    with block_node(capacity=8 * MIB, spill=spill) as node:
        client = node.connect()
        for first in range(0, 400, 20):
            put(client, range(first, first + 20))
        put(client, range(3))
        client.put(keys_for(range(2), "other"), [content_of(n) for n in range(2)])
        assert spill.blocks
        assert client.evict(space="m") == 400
        assert not any(client.exists(keys_for(range(400))))
        assert all(client.exists(keys_for(range(2), "other")))
        assert not any(key in spill.blocks for key in keys_for(range(400)))


def test_a_damaged_block_on_disk_is_not_there():
    spill = MemorySpill()
    with block_node(capacity=4 * MIB, spill=spill) as node:
        client = node.connect()
        for first in range(0, 200, 20):
            put(client, range(first, first + 20))
        key = next(key for key in keys_for(range(200)) if key not in node.told.held[Tier.DRAM])
        digest, content = spill.blocks[key]
        spill.blocks[key] = (digest, b"\xff" + content[1:])
        assert client.get([key]) == [None]
        assert client.exists([key]) == [False]
