"""KV blocks over real movers: found on other nodes through the log, gone with a killed mover."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

import tensorcast as tc
from block_nodes import content_of, keys_for
from stack import Stack, running_stack
from tensorcast.schema.blocks import BlockPut

pytestmark = [pytest.mark.slow]

STORED, EXISTED = BlockPut.STORED, BlockPut.EXISTED
FOUND_S_MAX = 15.0


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running_stack(None) as stack:
        for node in ("n1", "n2"):
            stack.start_mover(node)
        yield stack


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + FOUND_S_MAX
    while not is_true():
        assert time.monotonic() < deadline, "It did not come about."
        time.sleep(0.02)


def put(client: tc.Client, numbers: range, space: str) -> None:
    content = [content_of(n) for n in numbers]
    assert client.put_blocks(keys_for(numbers, space), content) == [STORED] * len(content)


def test_what_one_node_stores_another_one_finds(stack: Stack):
    keys = keys_for(range(50), "found")
    with stack.connect("n1") as here, stack.connect("n2") as there:
        put(there, range(50), "found")
        wait_until(lambda: all(here.exists(keys)))
        assert not any(here.exists(keys, anywhere=False))
        targets = [bytearray(1 << 16) for _ in keys]
        assert here.get_blocks(keys, into=targets, adopt=True) == [True] * 50
        assert targets == [content_of(n) for n in range(50)]
        assert all(here.exists(keys, anywhere=False))
        assert there.evict_blocks(space="found") == 50
        assert [bytes(v) for v in here.get_blocks(keys) if v] == targets


async def test_the_awaitable_client_does_the_same(stack: Stack):
    keys = keys_for(range(5), "await")
    async with tc.connect_async(stack.context("n1")) as client:
        content = [content_of(n) for n in range(5)]
        assert await client.put_blocks(keys, content) == [STORED] * 5
        assert await client.put_blocks(keys, content) == [EXISTED] * 5
        assert [bytes(view) for view in await client.get_blocks(keys)] == content
        assert await client.exists(keys) == [True] * 5
        assert await client.evict_blocks(keys[:2]) == 2
        assert await client.get_blocks(keys[:2], anywhere=False) == [None, None]


def test_a_killed_mover_takes_its_blocks_along_and_nothing_else(stack: Stack):
    """A client goes on by itself; its views stay as they were; nobody is served what is gone."""
    keys = keys_for(range(20), "killed")
    with stack.connect("n1") as client, stack.connect("n2") as other:
        put(client, range(20), "killed")
        views = client.get_blocks(keys)
        wait_until(lambda: all(other.exists(keys)))
        stack.kill("n1")
        assert other.get_blocks(keys) == [None] * 20  # item by item, and no error
        stack.start_mover("n1")
        assert client.get_blocks(keys) == [None] * 20
        assert [bytes(view) for view in views] == [content_of(n) for n in range(20)]
        put(client, range(20), "killed")
        assert [bytes(view) for view in client.get_blocks(keys)] == [bytes(v) for v in views]
        wait_until(lambda: all(other.exists(keys)))
        assert None not in other.get_blocks(keys)
