"""KV blocks of other nodes, over TCP: found by the locator, checked as they come, item by item; and
one bad node costs only what it lacks."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import pytest
import torch

from block_nodes import KIB, MIB, BlockNode, content_of, counts, flip, keys_for, wait_until
from proxies import FlippingProxy
from tensorcast.client import blocks_tcp
from tensorcast.client.blocks import Blocks
from tensorcast.schema.block_wire import (
    Op,
    State,
)
from tensorcast.schema.blocks import BlockPut
from tensorcast.schema.errors import InvalidArgument, TensorCastError, Timeout, Unavailable
from tensorcast.schema.ids import Tier

STORED, EXISTED = BlockPut.STORED, BlockPut.EXISTED


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
    assert node.connect().put(keys, [content_of(n, size) for n in numbers]) == [STORED] * len(keys)


def tell(node: BlockNode, numbers, *holders: str) -> None:
    """Has a node's locator say who holds these blocks."""
    node.map.holders |= dict.fromkeys(keys_for(numbers), holders)


def test_blocks_come_from_wherever_they_are(nodes: list[BlockNode]):
    here, there, far = nodes
    put(here, range(10))
    put(there, range(10, 200))
    put(far, range(200, 210))
    tell(here, range(10, 200), "n2")
    tell(here, range(200, 210), "n3")
    client = here.connect()
    views = client.get(keys_for(range(220)))
    assert [None if v is None else bytes(v) for v in views] == [
        *map(content_of, range(210)),
        *[None] * 10,
    ]
    targets = [bytearray(64 * KIB) for _ in range(220)]
    assert client.get_into(keys_for(range(220)), targets) == [True] * 210 + [False] * 10
    assert targets[:210] == [content_of(n) for n in range(210)]
    assert client.exists(keys_for(range(220))) == [True] * 210 + [False] * 10
    assert client.exists(keys_for(range(220)), anywhere=False) == [True] * 10 + [False] * 210
    assert client.get(keys_for([50]), anywhere=False) == [None]


def test_without_adopting_nothing_stays_here(nodes: list[BlockNode]):
    here, there, _ = nodes
    put(there, range(5))
    tell(here, range(5), "n2")
    client = here.connect()
    assert None not in client.get(keys_for(range(5)))
    assert not any(client.exists(keys_for(range(5)), anywhere=False))
    assert None not in client.get(keys_for(range(5)), adopt=True)
    assert all(client.exists(keys_for(range(5)), anywhere=False))
    assert client.get_into(keys_for([0]), [bytearray(64 * KIB)], adopt=True) == [True]


def test_sizes_may_differ(nodes: list[BlockNode]):
    here, there, _ = nodes
    sizes = [1, 300, 4 * KIB, 70_001, 3 * MIB, 5, 64 * KIB]
    keys = keys_for(range(len(sizes)))
    content = [content_of(n, size) for n, size in enumerate(sizes)]
    assert there.connect().put(keys, content) == [STORED] * len(sizes)
    tell(here, range(len(sizes)), "n2")
    views = here.connect().get(keys)
    assert [bytes(view) for view in views] == content
    with pytest.raises(InvalidArgument, match="its target"):
        here.connect().get_into(keys, [bytearray(size + 1) for size in sizes])


def test_who_has_lost_a_block_is_followed_by_the_next(nodes: list[BlockNode]):
    here, there, far = nodes
    put(there, range(0, 20, 2))
    put(far, range(20))
    tell(here, range(20), "n2", "n3")
    views = here.connect().get(keys_for(range(20)))
    assert [bytes(view) for view in views] == [content_of(n) for n in range(20)]


def test_a_node_that_is_gone_costs_what_it_alone_has(nodes: list[BlockNode]):
    here, there, far = nodes
    put(there, range(10))
    put(far, range(5))
    tell(here, range(5), "n2", "n3")
    tell(here, range(5, 10), "n2")
    client = here.connect()
    assert None not in client.get(keys_for(range(10)))
    there.server.close()  # with a connection to it that is idle
    targets = [bytearray(64 * KIB) for _ in range(10)]
    assert client.get_into(keys_for(range(10)), targets) == [True] * 5 + [False] * 5
    assert client.peers.is_resting(there.address)
    assert targets[:5] == [content_of(n) for n in range(5)]


def test_a_silent_node_is_waited_for_once(nodes: list[BlockNode], monkeypatch):
    here, _, far = nodes
    monkeypatch.setattr(blocks_tcp, "STALL_S", 0.2)
    put(far, range(5))
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, says nothing
        here.map.addresses["n2"] = f"127.0.0.1:{silent.getsockname()[1]}"
        tell(here, range(5), "n2", "n3")
        client = here.connect()
        assert None not in client.get(keys_for(range(5)))
        assert None not in client.get(keys_for(range(5)))
        assert client.peers.is_resting(here.map.addresses["n2"])


def test_a_node_that_was_silent_rests_longer_than_it_was_waited_for(nodes: list[BlockNode]):
    peers = nodes[0].connect().peers
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(Timeout):
            peers.use(address, lambda peer: peer.fetch(keys_for([1]), bytearray), patience_s=0.4)
    _, pause_s = peers._resting[address]
    assert pause_s >= 0.8


def test_a_block_that_is_damaged_on_the_way_is_fetched_from_another(nodes: list[BlockNode]):
    here, there, far = nodes
    put(there, range(10))
    put(far, range(10))
    with FlippingProxy(there.address, after_bytes=200 * KIB) as proxy:
        here.map.addresses["n2"] = proxy.address
        tell(here, range(10), "n2", "n3")
        views = here.connect().get(keys_for(range(10)))
        assert [bytes(view) for view in views] == [content_of(n) for n in range(10)]
        tell(here, range(10), "n2")
        targets = [bytearray(64 * KIB) for _ in range(10)]
        found = here.connect().get_into(keys_for(range(10)), targets)
        assert found.count(False) == 1


@pytest.mark.parametrize("into", [True, False])
def test_a_block_that_is_damaged_at_its_holder_is_dropped_there(
    nodes: list[BlockNode], *, into: bool
):
    here, there, _ = nodes
    put(there, range(10))
    key = keys_for([4])[0]
    flip(there, key)
    tell(here, range(10), "n2")
    client = here.connect()
    targets = [bytearray(64 * KIB) for _ in range(10)]
    if into:
        assert client.get_into(keys_for(range(10)), targets).count(False) == 1
    else:
        assert client.get(keys_for(range(10))).count(None) == 1
    assert there.told.broken == [(Tier.DRAM, key)]
    assert there.connect().exists(keys_for(range(10))) == [n != 4 for n in range(10)]
    put(there, [4])
    assert None not in client.get(keys_for(range(10)))


def test_what_is_good_stays_whatever_a_peer_says(nodes: list[BlockNode]):
    here, there, _ = nodes
    put(there, range(4))  # without digests yet
    put(there, range(4, 8))
    peers = here.connect().peers
    for _ in range(2):
        found = peers.use(there.address, lambda p: p.ask_states(Op.DAMAGED, keys_for(range(9))))
        assert found == bytes([State.ABSENT]) * 9
        while there.blocks._keeper.digest():
            pass
    assert all(there.connect().exists(keys_for(range(8))))


@pytest.mark.parametrize("into", [True, False])
def test_a_block_that_is_damaged_here_comes_from_another_holder(
    nodes: list[BlockNode], *, into: bool
):
    here, there, _ = nodes
    put(here, range(10))
    put(there, range(10))
    tell(here, range(10), "n2")
    key = keys_for([4])[0]
    flip(here, key)
    client = here.connect()
    targets = [bytearray(64 * KIB) for _ in range(10)]
    if into:
        assert client.get_into(keys_for(range(10)), targets, verify=True) == [True] * 10
    else:
        targets = client.get(keys_for(range(10)), verify=True)
    assert [bytes(one) for one in targets] == [content_of(n) for n in range(10)]
    wait_until(lambda: not client.exists([key], anywhere=False)[0])
    assert here.told.broken == [(Tier.DRAM, key)]


@pytest.mark.parametrize("upwards", [True, False])
def test_one_flipped_bit_never_gives_another_block(
    nodes: list[BlockNode], monkeypatch, *, upwards: bool
):
    """In the request or the head of the answer, wherever it is: keys, sizes, digests."""
    monkeypatch.setattr(blocks_tcp, "STALL_S", 0.2)
    _, there, _ = nodes
    keys = keys_for(range(64))  # a flipped bit of a key is often another key
    assert there.connect().put(keys, [content_of(n, 8) for n in range(64)]) == [STORED] * 64
    for after in range(60, 300, 3):
        with FlippingProxy(there.address, after_bytes=after, upwards=upwards) as proxy:
            client = Blocks(None, None, "test", "user:ada@test")
            try:
                found = client.get(keys[:8], address=proxy.address)
            except TensorCastError:
                found = []
            client.close()
        assert all(bytes(v) == content_of(n, 8) for n, v in enumerate(found) if v is not None)


def test_one_flipped_bit_never_stores_under_another_key(nodes: list[BlockNode], monkeypatch):
    monkeypatch.setattr(blocks_tcp, "STALL_S", 0.2)
    _, there, _ = nodes
    keys = keys_for(range(8))
    there.connect()
    for after in range(60, 300, 5):
        with FlippingProxy(there.address, after_bytes=after, upwards=True) as proxy:
            client = Blocks(None, None, "test", "user:ada@test")
            with suppress(TensorCastError):
                client.put(keys, [content_of(n) for n in range(8)], address=proxy.address)
            client.close()
        wait_until(lambda: not there.blocks.stats().writing)
        assert set(there.told.held[Tier.DRAM]) <= set(keys)
        views = there.clients[0].get(keys)
        assert all(bytes(v) == content_of(n) for n, v in enumerate(views) if v is not None)
        there.clients[0].evict(keys)


def test_all_nodes_of_a_call_are_asked_at_the_same_time(nodes: list[BlockNode]):
    """They answer nothing, and hang up once all have been asked."""
    here, _, far = nodes
    put(far, range(8))
    all_asked = threading.Barrier(8)

    def serve(silent: socket.socket) -> None:
        connected, _ = silent.accept()
        with connected, suppress(threading.BrokenBarrierError):
            all_asked.wait(5)

    with ExitStack() as stack:
        for at in range(8):
            silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            here.map.addresses[f"s{at}"] = f"127.0.0.1:{silent.getsockname()[1]}"
            tell(here, [at], f"s{at}", "n3")
            tell(here, [at + 10], f"s{at}")
            threading.Thread(target=serve, args=(silent,), daemon=True).start()
        client = here.connect()
        found = client.get(keys_for([*range(8), *range(10, 18)]))
    assert not all_asked.broken
    assert [view is not None for view in found] == [True] * 8 + [False] * 8


def test_a_node_that_rests_is_left_alone(nodes: list[BlockNode], monkeypatch):
    here, there, _ = nodes
    monkeypatch.setattr(blocks_tcp, "QUARANTINE_S", 60.0)
    put(there, [1])
    tell(here, [1], "n2")
    client = here.connect()
    client.peers._rest(there.address)
    assert client.get(keys_for([1])) == [None]
    assert client.get(keys_for([1]), address=there.address) != [None]  # unless it is named
    assert client.get(keys_for([1])) != [None]


class CountingSocket:
    """Counts how often more is received."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self.calls = 0

    def recvmsg_into(self, *arguments):
        self.calls += 1
        return self._socket.recvmsg_into(*arguments)

    def __getattr__(self, name: str):
        return getattr(self._socket, name)


def test_silence_within_a_block_is_waited_for_once():
    """The kernel gives what it has when its wait is over, and would wait as long again."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        near = socket.create_connection(listening.getsockname())
        far, _ = listening.accept()
    with near, far:
        peer = blocks_tcp.BlockPeer(near, "n2", 0.2)
        counting = peer.socket = CountingSocket(near)
        far.sendall(b"x" * 100)
        with pytest.raises(Timeout):
            peer._receive_group([memoryview(bytearray(1000))])
        assert counting.calls == 1


def test_blocks_can_be_put_on_another_node(nodes: list[BlockNode]):
    here, there, _ = nodes
    client = here.connect()
    keys, content = keys_for(range(100)), [content_of(n) for n in range(100)]
    assert client.put(keys[:50], content[:50], address=there.address) == [STORED] * 50
    assert client.put(keys, content, address=there.address) == [EXISTED] * 50 + [STORED] * 50
    assert [bytes(view) for view in there.connect().get(keys)] == content
    assert client.exists(keys, address=there.address) == [True] * 100
    assert client.evict(keys[:10], address=there.address) == 10
    assert client.evict(space="m", address=there.address) == 90
    assert counts(there.connect())["blocks"] == 0


def test_what_is_damaged_on_the_way_is_not_stored(nodes: list[BlockNode]):
    _, there, _ = nodes
    with FlippingProxy(there.address, after_bytes=200 * KIB, upwards=True) as proxy:
        client = Blocks(None, None, "test", "user:ada@test")
        content = [content_of(n) for n in range(10)]
        found = client.put(keys_for(range(10)), content, address=proxy.address)
        assert found.count(BlockPut.REJECTED) == 1
        client.close()
    client = there.connect()
    stored = [one is STORED for one in found]
    assert client.exists(keys_for(range(10))) == stored
    assert counts(client)["writing"] == 0


def test_without_a_node_of_ones_own(nodes: list[BlockNode]):
    _, there, far = nodes
    put(there, range(5))
    put(far, range(5, 10))
    tell(there, range(5, 10), "n3")
    client = Blocks(None, None, "test", "user:ada@test")
    views = client.get(keys_for(range(10)), address=there.address)
    assert [bytes(view) for view in views] == [content_of(n) for n in range(10)]
    with pytest.raises(Unavailable, match="node"):
        client.get(keys_for([1]))
    with pytest.raises(Unavailable, match="reached"):
        client.get(keys_for([1]), address="127.0.0.1:1")
    client.close()


def test_a_client_of_another_cluster_gets_nothing(nodes: list[BlockNode]):
    put(nodes[0], [1])
    client = Blocks(None, None, "other", "user:eve@test")
    with pytest.raises(Exception, match="cluster"):
        client.get(keys_for([1]), address=nodes[0].address)
    client.close()


def test_what_is_sent_stays_pinned_until_it_is_read(nodes: list[BlockNode]):
    """A reader that takes its time, while the node needs the room for others."""
    here, there, _ = nodes
    put(there, range(30), MIB)
    tell(here, range(30), "n2")
    writer = there.connect()
    stop = threading.Event()

    def churn() -> None:
        at = 1000
        while not stop.is_set():
            writer.put(keys_for([at]), [content_of(at, MIB)])
            at += 1

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        views = here.connect().get(keys_for(range(30)))
    finally:
        stop.set()
        thread.join()
    good = [content_of(n, MIB) == bytes(v) for n, v in enumerate(views) if v is not None]
    assert all(good)


# ---- what goes in and comes out ----------------------------------------------------------------


def test_tensors_and_arrays(nodes: list[BlockNode]):
    client = nodes[0].connect()
    keys = keys_for(range(4))
    source = torch.randn(4, 2, 16, 8).to(torch.bfloat16)
    assert client.put(keys, source) == [STORED] * 4
    found = client.get(keys, dtype=torch.bfloat16, shape=(2, 16, 8))
    assert all(torch.equal(a, b) for a, b in zip(found, source, strict=True))
    flat = client.get(keys, dtype=torch.uint8)
    assert flat[0].shape == (512,)
    target = torch.zeros_like(source)
    assert client.get_into(keys, target) == [True] * 4
    assert torch.equal(target, source)
    target = [torch.zeros(2, 16, 8, dtype=torch.bfloat16) for _ in keys]
    assert client.get_into(keys, target) == [True] * 4
    assert torch.equal(torch.stack(target), source)
    array = np.zeros((4, 512), dtype=np.uint8)
    assert client.get_into(keys, array) == [True] * 4
    assert array[2].tobytes() == source[2].view(torch.uint8).numpy().tobytes()
    more = keys_for(range(10, 14))
    assert client.put(more, array.view(np.int16)) == [STORED] * 4
    assert [bytes(v) for v in client.get(more)] == [row.tobytes() for row in array]


def test_a_tensor_over_a_block_keeps_it(nodes: list[BlockNode]):
    client = nodes[0].connect()
    put(nodes[0], [1], MIB)
    (tensor,) = client.get(keys_for([1]), dtype=torch.int64)
    for first in range(100, 200, 10):
        client.put(
            keys_for(range(first, first + 10)),
            [content_of(n, MIB) for n in range(first, first + 10)],
        )
    assert tensor.numpy().tobytes() == content_of(1, MIB)


@pytest.mark.parametrize(
    "block", [torch.zeros(4, 4).t(), np.zeros((4, 4))[:, 1], torch.zeros(0), "text"]
)
def test_what_cannot_be_a_block_is_refused(nodes: list[BlockNode], block):
    with pytest.raises(InvalidArgument):
        nodes[0].connect().put(keys_for([1]), [block])


def test_a_shape_that_does_not_fit_is_refused(nodes: list[BlockNode]):
    put(nodes[0], [1])
    with pytest.raises(InvalidArgument, match="is no"):
        nodes[0].connect().get(keys_for([1]), dtype=torch.float32, shape=(3, 5))
