"""KV blocks of another node without asking this node's mover: who had the last ones is asked first,
and a wrong guess costs nothing but time. And the answers of a node, small and large."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from block_nodes import KIB, MIB, BlockNode, content_of, flip, keys_for
from tensorcast.schema.blocks import BlockPut
from tensorcast.schema.errors import InvalidArgument


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[BlockNode]]:
    """Three nodes that know each other's addresses, not what is where."""
    found = [BlockNode(tmp_path, f"n{number}") for number in (1, 2, 3)]
    for node in found:
        node.map.addresses = {other.name: other.address for other in found}
    yield found
    for node in found:
        node.close()


def put(node: BlockNode, numbers, size: int = 64 * KIB) -> None:
    keys = keys_for(numbers)
    assert node.connect().put(keys, [content_of(n, size) for n in numbers]) == [
        BlockPut.STORED
    ] * len(keys)


def tell(node: BlockNode, numbers, *holders: str) -> None:
    """Has a node's locator say who holds these blocks."""
    node.map.holders |= dict.fromkeys(keys_for(numbers), holders)


def test_who_had_the_last_blocks_is_asked_before_the_mover(nodes: list[BlockNode]):
    here, there, _ = nodes
    put(there, range(6))
    tell(here, range(4), "n2")
    client = here.connect()
    for n in range(4):
        assert client.get_into(keys_for([n]), [bytearray(64 * KIB)]) == [True]
    target = bytearray(64 * KIB)
    assert client.get_into(keys_for([4]), [target]) == [True]  # though the mover knows nothing
    assert target == content_of(4)
    assert bytes(client.get(keys_for([5]))[0]) == content_of(5)
    assert client.get(keys_for([5]), anywhere=False) == [None]


def test_a_wrong_guess_finds_blocks_all_the_same(nodes: list[BlockNode]):
    here, there, far = nodes
    put(there, range(4))
    put(far, range(4, 10))
    put(here, range(10, 12))
    tell(here, range(4), "n2")
    tell(here, range(4, 10), "n3")
    client = here.connect()
    for n in range(4):
        assert client.get(keys_for([n])) != [None]
    views = client.get(keys_for([*range(2, 6), 99]))  # two of the node that is guessed
    assert [view and bytes(view) for view in views] == [*map(content_of, range(2, 6)), None]
    for n in range(4):
        assert client.get(keys_for([n])) != [None]
    targets = [bytearray(64 * KIB) for _ in range(4)]
    assert client.get_into(keys_for(range(6, 10)), targets) == [True] * 4
    assert targets == [content_of(n) for n in range(6, 10)]


def test_a_single_block_on_a_guess_may_be_anything(nodes: list[BlockNode]):
    """Absent, of another size than its target, damaged, in pieces, large."""
    here, there, far = nodes
    put(there, range(6))
    put(there, [10], 4 * KIB)
    put(there, [11], 3 * MIB)
    put(far, [5])
    tell(here, range(5), "n2")
    tell(here, [5], "n2", "n3")
    client = here.connect()

    def learn() -> None:
        for n in (0, 1, 2, 0, 1, 2):
            assert client.get_into(keys_for([n]), [bytearray(64 * KIB)]) == [True]

    learn()
    assert client._guesses.address(keys_for([0])) == there.address
    large = bytearray(3 * MIB)
    assert client.get_into(keys_for([11]), [large]) == [True]
    assert large == content_of(11, 3 * MIB)
    with pytest.raises(InvalidArgument, match="Block 0 has 4096 bytes"):
        client.get_into(keys_for([10]), [bytearray(64 * KIB)])
    with pytest.raises(InvalidArgument, match="Block 0 has 65536 bytes"):
        client.get_into(keys_for([0]), [bytearray(4 * KIB)])
    assert client.get_into(keys_for([99]), [bytearray(64 * KIB)]) == [False]
    for _ in range(8):
        learn()
    assert client._guesses.address(keys_for([0])) == there.address
    flip(there, keys_for([5])[0])
    target = bytearray(64 * KIB)
    assert client.get_into(keys_for([5]), [target]) == [True]  # from the next holder
    assert target == content_of(5)
    assert not there.connect().exists(keys_for([5]))[0]


def test_what_is_here_is_not_fetched_on_a_guess(nodes: list[BlockNode]):
    here, there, _ = nodes
    put(there, range(4))
    put(here, range(2, 4))
    tell(here, range(2), "n2")
    client = here.connect()
    for _ in range(4):
        assert None not in client.get(keys_for([0, 1]))
    before = there.blocks._store.state.index.lookups
    views = client.get(keys_for([2, 3]))
    assert [bytes(view) for view in views] == [content_of(2), content_of(3)]
    assert there.blocks._store.state.index.lookups == before


def test_a_guessed_node_that_is_gone_is_left_alone(nodes: list[BlockNode]):
    here, there, far = nodes
    put(there, range(4))
    put(far, range(4))
    tell(here, range(4), "n2", "n3")
    client = here.connect()
    for n in range(3):
        assert client.get(keys_for([n])) != [None]
    there.server.close()
    assert bytes(client.get(keys_for([3]))[0]) == content_of(3)
    assert client.peers.is_resting(there.address)
    assert bytes(client.get(keys_for([0]))[0]) == content_of(0)


def test_a_few_bytes_more_than_are_copied_arrive_too(nodes: list[BlockNode]):
    """Small answers go with one call, others by `sendfile`: the border, and blocks in pieces."""
    here, there, _ = nodes
    for number, (size, count) in enumerate([(64 * KIB, 4), (64 * KIB, 5), (4 * KIB, 64), (1, 70)]):
        numbers = range(100 * number, 100 * number + count)
        put(there, numbers, size)
        found = here.connect().get(keys_for(numbers), address=there.address)
        assert [bytes(view) for view in found] == [content_of(n, size) for n in numbers]
        alternate = keys_for(numbers)[::2]
        found = here.connect().get(alternate, address=there.address)
        assert [bytes(view) for view in found] == [content_of(n, size) for n in numbers[::2]]
