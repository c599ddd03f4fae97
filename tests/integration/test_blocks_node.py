"""KV blocks between a client and a node, over the node's own socket: put if absent, item by item;
views that nothing overwrites; budgets that hold; readers and writers that die."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

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
from tensorcast.client.blocks import Blocks
from tensorcast.schema.block_wire import (
    ENTRY,
    Flag,
    Greeting,
    Op,
    pack_entries,
    pack_frame,
    pack_opening,
    pack_request,
)
from tensorcast.schema.blocks import BlockKey, BlockPut, pack_key
from tensorcast.schema.errors import InvalidArgument, PermissionDenied, Unavailable
from tensorcast.schema.ids import Tier

STORED, EXISTED, REJECTED = BlockPut.STORED, BlockPut.EXISTED, BlockPut.REJECTED


@pytest.fixture
def node() -> Iterator[BlockNode]:
    with block_node() as node:
        yield node


@pytest.fixture
def client(node: BlockNode) -> Blocks:
    return node.connect()


# ---- put and get -------------------------------------------------------------------------------


def test_what_is_put_is_read_by_another_client(node: BlockNode, client: Blocks):
    assert put(client, range(40)) == [STORED] * 40
    other = node.connect()
    check(other, range(40))
    targets = [bytearray(64 * KIB) for _ in range(40)]
    assert other.get_into(keys_for(range(40)), targets) == [True] * 40
    assert targets == [content_of(n) for n in range(40)]
    assert node.told.held[Tier.DRAM] == dict.fromkeys(keys_for(range(40)), 64 * KIB)


def test_put_is_item_by_item(client: Blocks):
    put(client, range(0, 20, 2))
    for _ in range(2):  # also once the client has learnt that blocks are there
        assert put(client, range(20)) == [EXISTED, STORED] * 10 or put(client, range(20)) == (
            [EXISTED] * 20
        )
    check(client, range(20))
    assert put(client, [30, 31, 30]) == [STORED, STORED, EXISTED]


def test_the_first_content_stays(client: Blocks):
    key = keys_for([1])
    assert client.put(key, [b"first one"]) == [STORED]
    for _ in range(3):
        assert client.put(key, [b"other"]) == [EXISTED]
    (view,) = client.get(key)
    assert bytes(view) == b"first one"


def test_sizes_may_differ_within_a_batch(client: Blocks):
    sizes = [1, 255, 256, 257, 4095, 70_001, MIB, 3 * MIB + 5]
    keys = keys_for(range(len(sizes)))
    for _ in range(2):  # without and with slots lent ahead
        assert client.put(keys, [content_of(n, s) for n, s in enumerate(sizes)]) == (
            [STORED] * len(sizes)
        )
        views = client.get(keys)
        assert [bytes(v) for v in views] == [content_of(n, s) for n, s in enumerate(sizes)]
        del views
        assert client.evict(keys) == len(sizes)


def test_thousands_in_one_call(client: Blocks):
    numbers = range(5000)
    assert put(client, numbers, 1 * KIB) == [STORED] * 5000
    assert client.exists(keys_for(numbers)) == [True] * 5000
    check(client, numbers, 1 * KIB)
    assert client.evict(keys_for(numbers)) == 5000
    assert not any(client.exists(keys_for(numbers)))


def test_absent_blocks_are_none_and_false(client: Blocks):
    put(client, [1, 3])
    views = client.get(keys_for([0, 1, 2, 3]))
    assert [view is None for view in views] == [True, False, True, False]
    targets = [bytearray(64 * KIB) for _ in range(4)]
    assert client.get_into(keys_for([0, 1, 2, 3]), targets) == [False, True, False, True]
    assert client.exists(keys_for([0, 1, 2, 3])) == [False, True, False, True]


def test_nothing_is_asked_for_nothing(client: Blocks):
    assert client.put([], []) == []
    assert client.get([]) == []
    assert client.get_into([], []) == []
    assert client.exists([]) == []
    assert client.evict([]) == 0
    with pytest.raises(InvalidArgument, match="not said which blocks"):
        client.evict()


def test_keys_may_be_objects(client: Blocks):
    key = BlockKey("m", bytes(16), layer_group=1, rank=2)
    assert client.put([key], [b"content"]) == [STORED]
    assert client.exists([pack_key(key), BlockKey("m", bytes(16))]) == [True, False]


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.get([b"short"]),
        lambda client: client.get(keys_for([1])[0]),
        lambda client: client.get(["text"]),
        lambda client: client.put(keys_for([1]), []),
        lambda client: client.put(keys_for([1]), [b""]),
        lambda client: client.put(keys_for([1]), b"not a list"),
        lambda client: client.put(keys_for([1]), [object()]),
        lambda client: client.put(keys_for([1]), [b"x"], priority=16),
        lambda client: client.get_into(keys_for([1]), [b"read-only"]),
        lambda client: client.evict(space="a b"),
    ],
)
def test_what_makes_no_sense_is_refused(client: Blocks, ask):
    with pytest.raises(InvalidArgument):
        ask(client)
    put(client, [5])
    check(client, [5])


def test_a_target_of_another_size_is_refused(client: Blocks):
    put(client, [1])
    with pytest.raises(InvalidArgument, match="65536 bytes, its target 7"):
        client.get_into(keys_for([1]), [bytearray(7)])
    wait_until(lambda: counts(client)["pinned"] == 0)


def test_a_whole_space_is_evicted(node: BlockNode, client: Blocks):
    client.put(keys_for(range(9), "old"), [content_of(n) for n in range(9)])
    client.put(keys_for(range(9), "older"), [content_of(n) for n in range(9)])
    assert client.evict(space="old") == 9
    assert not any(client.exists(keys_for(range(9), "old")))
    assert all(client.exists(keys_for(range(9), "older")))
    assert set(node.told.held[Tier.DRAM]) == set(keys_for(range(9), "older"))


# ---- views and pins ----------------------------------------------------------------------------


def test_a_view_is_never_overwritten(node: BlockNode, client: Blocks):
    put(client, range(8), MIB)
    views = client.get(keys_for([2, 5]))
    for first in range(100, 400, 50):  # far more than fits
        put(client, range(first, first + 50), MIB)
    assert [bytes(v) for v in views] == [content_of(2, MIB), content_of(5, MIB)]
    assert client.evict(keys_for([2])) == 1
    for first in range(1000, 1200, 50):
        put(client, range(first, first + 50), MIB)
    assert bytes(views[0]) == content_of(2, MIB)
    assert counts(client)["retired"] == 1
    del views
    wait_until(lambda: counts(client)["retired"] == counts(client)["pinned"] == 0)


def test_a_view_outlives_its_client(node: BlockNode, client: Blocks):
    put(client, [1], MIB)
    (view,) = client.get(keys_for([1]))
    client.close()
    other = node.connect()
    for first in range(100, 300, 50):
        put(other, range(first, first + 50), MIB)
    assert bytes(view) == content_of(1, MIB)
    assert counts(other)["pinned"] == 1
    del view
    wait_until(lambda: counts(other)["pinned"] == 0)


def test_a_view_cannot_be_written_to(client: Blocks):
    put(client, [1])
    (view,) = client.get(keys_for([1]))
    with pytest.raises(TypeError):
        view[0] = 1


def test_pins_of_an_idle_client_end_by_themselves(node: BlockNode, client: Blocks):
    put(client, [1])
    views = client.get(keys_for([1]))
    other = node.connect()
    assert counts(other)["pinned"] == 1
    del views
    wait_until(lambda: counts(other)["pinned"] == 0)


def test_pins_of_every_idle_connection_end_by_themselves(node: BlockNode, client: Blocks):
    """A client has several connections after calls at a time; each has something to tell."""
    put(client, range(8))
    gate = threading.Barrier(4)

    def look(first: int) -> list[object]:
        def work(connection):
            gate.wait(30)  # so that each has a connection of its own
            found = connection.find(
                keys_for([first, first + 1]), shortly=False, digests=True, elsewhere=False
            )
            return connection.views(found)

        return client._here.use(work, is_viewing=True)

    with ThreadPoolExecutor(4) as pool:
        views = list(pool.map(look, range(0, 8, 2)))
    assert counts(client)["pinned"] == 8
    del views
    wait_until(lambda: counts(client)["pinned"] == 0)


def test_a_client_that_is_closed_leaves_no_socket_open(node: BlockNode, client: Blocks):
    put(client, [1])
    watched = client._here._watched
    assert watched is not None
    client.close()
    wait_until(lambda: watched.fileno() < 0)


READER = """
import sys
sys.path.insert(0, {tests!r})
from block_nodes import keys_for
from tensorcast.client.blocks import Blocks
client = Blocks({socket!r}, "n1", "test", "user:ada@test")
views = client.get(keys_for(range(8)))
client.put(keys_for([99]), [bytes(65536)])
print(len(views), flush=True)
sys.stdin.read()
"""


def test_a_killed_reader_pins_nothing_and_keeps_no_slot(node: BlockNode, client: Blocks):
    put(client, range(8))
    code = READER.format(tests=os.path.dirname(__file__) + "/..", socket=str(node.socket))
    reader = subprocess.Popen(
        [sys.executable, "-P", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert reader.stdout is not None
    assert reader.stdin is not None
    try:
        assert reader.stdout.readline() == b"8\n"
        before = counts(client)
        assert before["pinned"] == 8
        assert before["lent"] > 0
    finally:
        reader.send_signal(signal.SIGKILL)
        reader.wait()
        reader.stdout.close()
        reader.stdin.close()
    wait_until(lambda: counts(client)["pinned"] == 0)
    client.close()
    other = node.connect()
    wait_until(lambda: counts(other)["lent"] == 0)
    assert all(other.exists(keys_for([*range(8), 99])))


def test_a_writer_that_dies_leaves_nothing_half_written(node: BlockNode, client: Blocks):
    """By hand: it asks where to write, and never says that it has written."""
    keys = keys_for([1, 2])
    with socket.socket(socket.AF_UNIX) as writer:
        writer.connect(f"{node.socket}.kv")
        writer.sendall(pack_opening(Greeting(cluster="test", actor="user:eve@test")))
        entries = pack_entries([0, 100, 0, 100])
        writer.sendall(pack_request(Op.STORE, keys, entries, tag=1))
        wait_until(lambda: counts(client)["writing"] == 2)
        assert client.put(keys, [bytes(100)] * 2) == [EXISTED] * 2
    wait_until(lambda: counts(client)["writing"] == 0)
    assert client.exists(keys) == [False] * 2
    assert client.put(keys, [b"x" * 100] * 2) == [STORED] * 2


@pytest.mark.parametrize("sizes", [(100, 100), (100, 1 << 20)])
def test_a_tag_that_is_in_use_ends_the_connection_and_frees_all_of_it(
    node: BlockNode, client: Blocks, sizes: tuple[int, int]
):
    keys = keys_for([1, 2])
    client.put(keys_for([9]), [bytes(100)])
    client.close()
    client = node.connect()
    wait_until(lambda: counts(client)["lent"] == 0)
    before = counts(client)
    with socket.socket(socket.AF_UNIX) as writer:
        writer.connect(f"{node.socket}.kv")
        writer.settimeout(10)
        writer.sendall(pack_opening(Greeting(cluster="test", actor="user:eve@test")))
        for key, size in zip(keys, sizes, strict=True):
            writer.sendall(pack_request(Op.STORE, [key], pack_entries([0, size]), tag=5))
        while writer.recv(1 << 16):  # it is cut off
            pass
    wait_until(lambda: counts(client)["writing"] == 0)
    wait_until(lambda: counts(client)["free_bytes"] == before["free_bytes"])  # slabs grow ahead
    assert counts(client)["lent"] == before["lent"]
    assert client.put(keys, [b"x" * 100] * 2) == [STORED] * 2


def test_a_reader_waits_for_a_block_that_is_being_written(node: BlockNode, client: Blocks):
    keys = keys_for([1])
    found: list[object] = []
    with socket.socket(socket.AF_UNIX) as writer:
        writer.connect(f"{node.socket}.kv")
        writer.sendall(pack_opening(Greeting(cluster="test", actor="user:eve@test")))
        writer.sendall(pack_request(Op.STORE, keys, pack_entries([0, 100]), tag=1))
        wait_until(lambda: counts(client)["writing"] == 1)
        reader = threading.Thread(target=lambda: found.extend(client.get(keys)))
        reader.start()
        writer.sendall(pack_frame(Op.FILLED, tag=1))
        reader.join()
    assert found != [None]


@pytest.mark.parametrize(
    "frame",
    [
        pack_frame(Op.FILLED, tag=5),
        pack_frame(Op.MAP, tag=77),
        pack_frame(Op.FETCH),
        pack_frame(Op.RELEASE, count=9),
        pack_frame(Op.RETURN, count=9),
        b"\xff" * 64,
        pack_request(Op.STORE, keys_for([1]), ENTRY.pack(1 << 40, 8), flags=Flag.PROPOSED),
        pack_request(Op.STORE, keys_for([1]), b""),
        pack_request(Op.STORE, keys_for([1]), pack_entries([0, 8]), flags=Flag.WRITTEN),
        pack_request(Op.FIND, keys_for([1]), tag=3) * 2,
    ],
)
def test_a_client_that_speaks_nonsense_is_cut_off(node: BlockNode, client: Blocks, frame: bytes):
    put(client, [1])
    with socket.socket(socket.AF_UNIX) as other:
        other.connect(f"{node.socket}.kv")
        other.settimeout(10)
        other.sendall(pack_opening(Greeting(cluster="test", actor="user:eve@test")) + frame)
        while other.recv(1 << 16):
            pass
    check(client, [1])
    # The client's three, the keeper's and the room's.
    wait_until(lambda: counts(client)["sessions"] == 5)


@pytest.mark.parametrize(
    "greeting",
    [
        Greeting(cluster="other", actor="user:eve@test"),
        Greeting(cluster="test", actor="mover:n1"),
        Greeting(cluster="test", actor="user:eve@test", node="n7"),
    ],
)
def test_who_is_wrong_here_is_refused(node: BlockNode, greeting: Greeting):
    client = Blocks(str(node.socket), "n1", greeting.cluster, greeting.actor)
    client._here._greeting = greeting
    with pytest.raises(PermissionDenied):
        client.get(keys_for([1]))
    client.close()


def test_without_a_mover_it_is_said_what_to_do(tmp_path):
    client = Blocks(str(tmp_path / "nothing.sock"), "n1", "test", "user:ada@test")
    with pytest.raises(Unavailable, match="tcctl up"):
        client.get(keys_for([1]))


# ---- digests -----------------------------------------------------------------------------------


def test_digests_are_made_at_rest(node: BlockNode, client: Blocks):
    put(client, range(100))
    assert counts(client)["unhashed"] > 0
    while node.blocks._keeper.digest():  # as its thread does after a second without work
        pass
    assert counts(client)["unhashed"] == 0
    assert len(node.blocks._store.state.index.digests) == 100


def test_a_flipped_bit_is_found_on_demand(node: BlockNode, client: Blocks):
    put(client, [1, 2, 3])
    keys = keys_for([1, 2, 3])
    assert all(view is not None for view in client.get(keys, verify=True))
    store = node.blocks._store
    with store.memory(store.state.index.entries[keys[1]]) as memory:
        memory[1000] ^= 1
    targets = [bytearray(64 * KIB) for _ in keys]
    assert client.get_into(keys, targets, verify=True) == [True, False, True]
    views = client.get(keys, verify=True)
    assert [view is None for view in views] == [False, True, False]
    wait_until(lambda: client.exists(keys) == [True, False, True])


# ---- many at once ------------------------------------------------------------------------------


def test_many_threads_at_once():
    with block_node(capacity=16 * MIB) as node:
        client = node.connect()
        failed: list[object] = []

        def work(seed: int) -> None:
            for round_ in range(30):
                numbers = range(seed % 2 * 10 + round_ * 7, seed % 2 * 10 + round_ * 7 + 24)
                put(client, numbers)
                views = client.get(keys_for(numbers))
                failed.extend(
                    n
                    for n, view in zip(numbers, views, strict=True)
                    if view is not None and bytes(view) != content_of(n)
                )

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed
        stats = counts(client)
        assert stats["writing"] == 0
        assert stats["slab_bytes"] <= 16 * MIB


def test_the_same_block_from_many_is_stored_once(node: BlockNode):
    clients = [node.connect() for _ in range(4)]
    found: list[list[BlockPut]] = []

    def work(client: Blocks) -> None:
        found.append(put(client, range(50)))

    threads = [threading.Thread(target=work, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for at in range(50):
        assert sorted(one[at] for one in found) == [EXISTED] * 3 + [STORED]
    check(clients[0], range(50))
