"""KV blocks where a process forks, where a call fails half-way, and where movers come and go: what
one process reads and writes is never another's, and nothing stays behind."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from block_nodes import (
    KIB,
    MIB,
    BlockNode,
    block_node,
    check,
    content_of,
    counts,
    keys_for,
    put,
    wait_until,
)
from tensorcast.client import blocks_socket
from tensorcast.client.blocks import Blocks
from tensorcast.schema.blocks import BlockPut
from tensorcast.schema.errors import InvalidArgument

STORED = BlockPut.STORED


@pytest.fixture
def node() -> Iterator[BlockNode]:
    with block_node() as node:
        yield node


@pytest.fixture
def client(node: BlockNode) -> Blocks:
    return node.connect()


def in_child(work: Callable[[], object]) -> int:
    """Does it in a forked child; how the child ended (0: well; negative: by a signal)."""
    child = os.fork()
    if not child:
        faulthandler.disable()
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def overwrite(node: BlockNode, numbers: range = range(1000, 1300, 50)) -> None:
    """Puts far more than fits."""
    other = node.connect()
    for first in numbers:
        put(other, range(first, first + 50), MIB)


# ---- forks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_asked", [False, True])
def test_a_child_that_drops_views_unpins_nothing(node: BlockNode, client: Blocks, is_asked: bool):
    put(client, range(8), MIB)
    client.get(keys_for(range(8)))
    views = client.get(keys_for(range(8)), verify=is_asked)

    def drop() -> None:
        views.clear()
        gc.collect()

    assert in_child(drop) == 0
    assert counts(node.connect())["pinned"] == 8
    overwrite(node)
    assert [bytes(view) for view in views] == [content_of(n, MIB) for n in range(8)]


def test_nor_does_one_that_drops_views_of_a_closed_client(node: BlockNode, client: Blocks):
    put(client, [1], MIB)
    views = client.get(keys_for([1]))
    client.close()
    assert in_child(views.clear) == 0
    overwrite(node)
    assert bytes(views[0]) == content_of(1, MIB)


def test_inherited_views_show_nothing_rather_than_other_blocks(node: BlockNode, client: Blocks):
    put(client, [1], MIB)
    views = client.get(keys_for([1]))
    assert in_child(lambda: bytes(views[0][:8])) == -signal.SIGSEGV

    def map_much_else() -> None:
        client.get(keys_for([1]))
        kept = [np.ones(MIB, np.uint8) for _ in range(64)]
        bytes(views[0][:8])
        kept.clear()

    assert in_child(map_much_else) == -signal.SIGSEGV
    assert bytes(views[0]) == content_of(1, MIB)


def test_a_child_makes_connections_of_its_own(node: BlockNode, client: Blocks):
    put(client, range(4), MIB)
    views = client.get(keys_for(range(4)))

    def work() -> None:  # it is nobody's who would tell: a fork alone does
        check(client, range(4), MIB)
        put(client, range(10, 14), MIB)
        check(client, range(10, 14), MIB)
        views.clear()
        client.close()

    assert in_child(work) == 0
    check(client, [*range(4), *range(10, 14)], MIB)
    assert counts(client)["pinned"] == 4
    assert client.put(keys_for([20]), [content_of(20)]) == [STORED]


def test_a_child_leaves_other_nodes_connections_alone(node: BlockNode, client: Blocks):
    put(client, [1])
    far = node.connect()
    keys = keys_for([1])
    assert far.exists(keys, address=node.address) == [True]

    def work() -> None:
        assert far.exists([*keys, *keys_for([2])], address=node.address) == [True, False]

    assert in_child(work) == 0
    assert far.exists(keys, address=node.address) == [True]


# ---- puts that fail ----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [KIB, MIB])
@pytest.mark.parametrize("error", [KeyboardInterrupt, BufferError])
def test_a_put_that_fails_keeps_no_key(
    node: BlockNode, client: Blocks, monkeypatch, size: int, error: type[BaseException]
):
    """Also while views of the same client are in use, with and without slots lent ahead."""
    put(client, range(4), size)
    client.get(keys_for(range(4)))
    views = client.get(keys_for(range(4)))
    other = node.connect()
    for numbers in (range(10, 14), range(20, 24)):

        def fail(*_: object) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(blocks_socket, "write_blocks", fail)
            with pytest.raises(error):
                put(client, numbers, size)
        wait_until(lambda: counts(other)["writing"] == 0)
        assert put(other, numbers, size) == [STORED] * 4
        put(client, range(30 + numbers[0], 34 + numbers[0]), size)
    assert counts(other)["pinned"] == 4
    assert [bytes(view) for view in views] == [content_of(n, size) for n in range(4)]


@pytest.mark.parametrize("size", [KIB, MIB])
@pytest.mark.parametrize("step", [2, -1])
@pytest.mark.parametrize(
    "make", [lambda memory: memory, lambda memory: np.frombuffer(memory, "u1")]
)
def test_what_is_not_contiguous_is_refused_at_once(
    node: BlockNode, client: Blocks, size: int, step: int, make
):
    keys = keys_for([1])
    strided = make(memoryview(bytearray(2 * size)))[::step]
    for address in (None, node.address):
        with pytest.raises(InvalidArgument, match="contiguous"):
            client.put(keys, [strided], address=address)
    put(client, [1], size)
    for address in (None, node.address):
        with pytest.raises(InvalidArgument, match="contiguous"):
            client.get_into(keys, [strided], address=address)
    assert counts(client)["writing"] == 0


# ---- what stays mapped -------------------------------------------------------------------------


def slabs_mapped() -> int:
    """Mappings of slabs in this process to read only: those of clients, not of the mover."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sum(" r--s " in line and "memfd:segment" in line for line in lines)


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_slabs_of_a_mover_that_is_gone_are_unmapped(tmp_path: Path):
    before = slabs_mapped()
    client = Blocks(str(tmp_path / "n1.sock"), "n1", "test", "user:ada@test")
    for _ in range(3):
        node = BlockNode(tmp_path)
        put(client, range(4), MIB)
        check(client, range(4), MIB)
        put(client, range(10, 14), 64 * KIB)
        check(client, range(10, 14), 64 * KIB)
        mapped = slabs_mapped() - before
        node.close()
        assert 2 <= mapped <= 8  # of this life alone
    client.close()


@pytest.mark.usefixtures("no_collector")
def test_a_view_keeps_no_slab_but_its_own(tmp_path: Path):
    before = slabs_mapped()
    client = Blocks(str(tmp_path / "n1.sock"), "n1", "test", "user:ada@test")
    node = BlockNode(tmp_path)
    put(client, [1], 64 * KIB)
    put(client, range(10, 14), MIB)
    check(client, range(10, 14), MIB)
    (view,) = client.get(keys_for([1]))
    assert slabs_mapped() - before > 1
    node.close()
    client.close()
    del client
    wait_until(lambda: slabs_mapped() - before == 1)
    assert bytes(view) == content_of(1)
    del view
    wait_until(lambda: slabs_mapped() == before)
