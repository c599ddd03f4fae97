"""Blocks that lie in pieces: put from there, got into there, from this node and from another; given
up in the middle; and clients with little patience."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from block_nodes import KIB, BlockNode, content_of, keys_for, wait_until
from tensorcast.client.blocks import Blocks
from tensorcast.client.blocks_pieces import Pieces
from tensorcast.schema.block_wire import SOCKET_SUFFIX
from tensorcast.schema.blocks import BlockPut
from tensorcast.schema.errors import Cancelled, Timeout, Unavailable

STORED = BlockPut.STORED
COUNT, LAYERS, RUN = 9, 5, 24 * KIB
"""Nine blocks of an engine with five layers: each layer has one run of each block."""


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[BlockNode]]:
    found = [BlockNode(tmp_path, f"n{number}") for number in (1, 2)]
    for node in found:
        node.map.addresses = {other.name: other.address for other in found}
    yield found
    for node in found:
        node.close()


class Cache:
    """The KV cache of an engine: layers, each of them with a run for each block."""

    def __init__(self) -> None:
        self.rows = np.zeros((LAYERS, COUNT, RUN), np.uint8)

    def pieces(self) -> list[Pieces]:
        return [Pieces([self.rows[:2, n], self.rows[2:, n]]) for n in range(COUNT)]

    def fill(self) -> None:
        for n in range(COUNT):
            self.rows[:, n] = np.frombuffer(content_of(n, LAYERS * RUN), np.uint8).reshape(
                LAYERS, RUN
            )


def contents() -> list[bytes]:
    return [content_of(n, LAYERS * RUN) for n in range(COUNT)]


@pytest.mark.parametrize("rounds", [1, 3])
def test_pieces_are_one_block(nodes: list[BlockNode], rounds: int):
    client, cache, keys = nodes[0].connect(), Cache(), keys_for(range(COUNT))
    cache.fill()
    for _ in range(rounds):  # the first is asked for, the next go into slots that were lent
        assert client.put(keys, cache.pieces()) == [STORED] * COUNT
        assert [bytes(view) for view in client.get(keys)] == contents()
        other = Cache()
        assert client.get_into(keys, other.pieces(), verify=True) == [True] * COUNT
        assert np.array_equal(other.rows, cache.rows)
        assert client.evict(keys) == COUNT


def test_pieces_come_from_another_node(nodes: list[BlockNode]):
    here, there = nodes
    keys = keys_for(range(COUNT))
    there.connect().put(keys, contents())
    here.map.holders |= dict.fromkeys(keys, ("n2",))
    cache, wanted = Cache(), Cache()
    wanted.fill()
    for adopt in (False, True):
        cache.rows[:] = 0
        assert here.connect().get_into(keys, cache.pieces(), adopt=adopt) == [True] * COUNT
        assert np.array_equal(cache.rows, wanted.rows)
    assert here.connect().exists(keys, anywhere=False) == [True] * COUNT


def test_pieces_are_put_on_another_node(nodes: list[BlockNode]):
    here, there = nodes
    cache, keys = Cache(), keys_for(range(COUNT))
    cache.fill()
    assert here.connect().put(keys, cache.pieces(), address=there.address) == [STORED] * COUNT
    assert [bytes(view) for view in there.connect().get(keys)] == contents()


def test_very_many_pieces_of_one_block_come_with_several_calls(nodes: list[BlockNode]):
    here, there = nodes
    (key,) = keys_for([0])
    content = content_of(0, 3000 * 32)
    there.connect().put([key], [content])
    here.map.holders[key] = ("n2",)
    rows = np.zeros((3000, 48), np.uint8)
    assert here.connect().get_into([key], [Pieces([rows[:, :32]])]) == [True]
    assert rows[:, :32].tobytes() == content
    assert not rows[:, 32:].any()


class GivenUp(Pieces):
    """Pieces whose owner wants them back."""

    def copy_to(self, target: memoryview) -> None:
        raise Cancelled("given up")


@pytest.mark.parametrize("before", [0, COUNT])
def test_a_block_that_is_given_up_while_it_is_put_is_never_seen(nodes: list[BlockNode], before):
    client, cache = nodes[0].connect(), Cache()
    cache.fill()
    keys = keys_for(range(COUNT))
    if before:  # so that slots are lent ahead
        client.put(keys_for(range(100, 100 + before)), cache.pieces())
    pieces = [*cache.pieces()[:-1], GivenUp([cache.rows[:, COUNT - 1]])]
    with pytest.raises(Cancelled):
        client.put(keys, pieces)
    wait_until(lambda: not any(client.exists(keys)))  # the mover hears that its writer is gone
    assert client.get(keys) == [None] * COUNT
    assert client.put(keys, cache.pieces()) == [STORED] * COUNT
    assert [bytes(view) for view in client.get(keys)] == contents()


def test_a_client_with_little_patience_waits_no_longer(tmp_path: Path):
    path = tmp_path / "n.sock"
    client = Blocks(str(path), "n", "test", "someone", patience_s=0.2)
    begin = time.monotonic()
    with pytest.raises(Unavailable):
        client.exists(keys_for([1]))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{path}{SOCKET_SUFFIX}")
        listening.listen()
        with pytest.raises(Timeout):  # it accepts, and says nothing
            client.exists(keys_for([1]))
    assert time.monotonic() - begin < 10  # the usual limit is 30
    with suppress(Unavailable):
        client.close()
