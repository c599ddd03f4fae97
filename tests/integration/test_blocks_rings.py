"""Puts that wake nobody: they are done whatever the mover is doing, and hold for all who ask."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from block_nodes import (
    KIB,
    BlockNode,
    Blocks,
    check,
    content_of,
    counts,
    keys_for,
    put,
    wait_until,
)
from tensorcast.client.blocks_ring import PutRing
from tensorcast.schema.block_ring import WRITTEN
from tensorcast.schema.block_wire import Flag, Op, pack_entries, pack_request
from tensorcast.schema.blocks import BlockPut
from tensorcast.schema.errors import Unavailable
from tensorcast.schema.ids import Tier

STORED = {BlockPut.STORED}
EXISTED = {BlockPut.EXISTED}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[BlockNode]:
    found = BlockNode(tmp_path)
    if found.blocks._store.state.board.fd < 0:
        pytest.skip("there is no board on this machine, and so no ring")
    yield found
    found.close()


def warm(node: BlockNode, first: int = 1000) -> Blocks:
    """A client that has a ring, slots lent ahead, and nothing to be taken in."""
    client = node.connect()
    assert set(put(client, range(first, first + 10))) == STORED
    map_slots(client)
    return client


def map_slots(client: Blocks) -> None:
    """Waits until some slots are lent ahead, and maps them: that needs the mover."""
    connection = client._here._idle[-1]
    wait_until(lambda: connection._has_slots(64 * KIB, 24))
    connection._addresses(connection.spares[64 * KIB], write=True)


@contextmanager
def asleep(node: BlockNode, *clients: Blocks) -> Iterator[None]:
    """The mover can do nothing meanwhile."""
    for client in clients:
        map_slots(client)
    with node.blocks._store.state.lock:
        yield


def is_cut_off(client: Blocks) -> bool:
    try:
        return not client._here._idle[-1].count()
    except Unavailable:
        return True


def ring_of(client: Blocks) -> PutRing:
    found = client._here._idle[-1]._ring
    assert found is not None
    return found


def test_a_put_waits_for_nobody_and_holds_for_everybody(node: BlockNode):
    producer, other = warm(node), node.connect()
    with asleep(node, producer):
        assert set(put(producer, range(10))) == STORED
        assert set(put(producer, range(10, 20))) == STORED
    check(other, range(20))
    assert all(other.exists(keys_for(range(20))))
    assert set(keys_for(range(20))) <= node.told.held[Tier.DRAM].keys()
    assert counts(other)["writing"] == 0


def test_one_question_is_enough_whatever_it_is(node: BlockNode):
    producer, other = warm(node), node.connect()
    with asleep(node, producer):
        put(producer, range(10))
    assert set(put(other, range(10))) == EXISTED
    with asleep(node, producer):
        put(producer, range(20, 30))
    assert other.evict(keys_for(range(20, 30))) == 10
    with asleep(node, producer):
        put(producer, range(30, 40))
    assert all(other.exists(keys_for(range(30, 40)), address=node.address))
    assert other.evict(space="m") == 30


def test_a_block_is_put_once_also_before_it_is_taken_in(node: BlockNode):
    producer = warm(node)
    twice = [content_of(n) for n in (1, 2, 1)]
    with asleep(node, producer):
        put(producer, [5])
        ring = ring_of(producer)
        assert ring.tells_of(keys_for([5]))
    assert set(put(producer, [5])) == EXISTED
    found = producer.put(keys_for([1, 2, 1]), twice)
    assert found == [BlockPut.STORED, BlockPut.STORED, BlockPut.EXISTED]
    assert put(producer, [2, 3]) == [BlockPut.EXISTED, BlockPut.STORED]
    check(producer, [1, 2, 3, 5])


def test_two_processes_that_put_the_same_block_keep_one(node: BlockNode):
    """Both may be told that they stored it; the slot of the second is free again."""
    one, two = warm(node), warm(node, 2000)
    before = counts(one)["blocks"]
    with asleep(node, one, two):
        put(one, range(10))
        put(two, range(10))
    check(two, range(10))
    found = counts(one)
    assert found["blocks"] == before + 10
    one.close()
    two.close()
    reader = node.connect()
    wait_until(lambda: counts(reader)["lent"] == 0)
    found = counts(reader)
    assert found["free_bytes"] + found["blocks"] * 64 * KIB == 32 << 20


def test_what_was_put_stays_when_its_writer_is_killed(node: BlockNode):
    reader = node.connect()
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        client = Blocks(str(node.socket), node.name, "test", "user:eve@test")
        put(client, range(10))
        map_slots(client)
        os.write(ready[1], b"x")
        os.read(done[0], 1)
        put(client, range(10, 20))
        os.kill(os.getpid(), signal.SIGKILL)
    os.read(ready[0], 1)
    with asleep(node):
        os.write(done[1], b"x")
        os.waitpid(child, 0)
    check(reader, range(20))
    wait_until(lambda: counts(reader)["lent"] == 0)
    for end in (*ready, *done):
        os.close(end)


def test_more_than_the_ring_or_the_slots_hold_is_asked_for(node: BlockNode):
    producer = warm(node)
    for first in range(0, 300, 50):
        assert set(put(producer, range(first, first + 50), size=16 * KIB)) == STORED
    check(producer, range(300), size=16 * KIB)


def test_a_ring_of_nonsense_ends_its_connection_alone(node: BlockNode):
    liar, other = warm(node), warm(node, 2000)
    keys = keys_for([77])
    flags = Flag.PROPOSED | Flag.WRITTEN
    frame = pack_request(Op.STORE, keys, pack_entries([12345, 64 * KIB]), flags=flags)
    ring_of(liar).write(frame, keys)  # nobody lent that slot
    assert other.exists(keys) == [False]
    assert set(put(other, range(10))) == STORED
    wait_until(lambda: is_cut_off(liar))
    check(other, range(10))
    assert set(put(liar, range(20, 30), size=KIB)) == STORED


def test_a_count_of_nonsense_ends_its_connection_alone(node: BlockNode):
    liar, other = warm(node), warm(node, 2000)
    memory = ring_of(liar)._words
    memory[WRITTEN] = 1 << 50
    assert set(put(other, range(10))) == STORED
    check(other, range(10))
    wait_until(lambda: is_cut_off(liar))


def test_a_mover_that_offers_no_ring_is_asked(node: BlockNode):
    client = node.connect()
    connection = client._here._connect()
    connection.may_ring = False
    client._here._idle.append(connection)
    for first in (0, 10, 20):
        assert set(put(client, range(first, first + 10))) == STORED
    assert connection._ring is None
    check(client, range(30))


def test_slots_are_given_back(node: BlockNode):
    client = warm(node)
    assert counts(client)["lent"] > 0
    client._here._idle[-1].return_spares()
    client._here._idle[-1].flush()
    wait_until(lambda: counts(client)["lent"] == 0)
