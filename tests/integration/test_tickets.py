"""The data port of real movers: who has no good ticket gets nothing, and the log says so."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import aclosing
from functools import reduce

import pytest

import tensorcast as tc
from block_nodes import content_of, keys_for
from stack import Stack, running_stack
from tensorcast.client import Context
from tensorcast.client.blocks_frames import FrameChannel
from tensorcast.client.blocks_pool import BlockConnections
from tensorcast.log.jetstream import connect_log
from tensorcast.movers.doors import Seal
from tensorcast.movers.reports import Life
from tensorcast.movers.transports.tcp import wire
from tensorcast.movers.transports.tcp.sockets import parse_address, receive
from tensorcast.schema.block_wire import Greeting
from tensorcast.schema.cluster import ClusterView, project
from tensorcast.schema.codec import decode
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.errors import PermissionDenied
from tensorcast.schema.events import SignalEmitted
from tensorcast.schema.ids import Epoch, NodeId, Seq
from tensorcast.schema.tickets import BLOCKS, Challenge

pytestmark = [pytest.mark.slow]

N1, N2 = NodeId("n1"), NodeId("n2")
WAIT_S = 30.0
REQUEST = wire.REQUEST.pack(64, 1, 0) + b"a" * 64 + wire.RANGE.pack(0, 1)


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Without a control plane: nothing here may need one."""
    with running_stack(None) as stack:
        for node in (N1, N2):
            stack.start_mover(node)
        yield stack


async def read_log(stack: Stack) -> list[Recorded]:
    log = await connect_log(stack.nats.url, "test", name="test")
    found: list[Recorded] = []
    try:
        last = await log.last_seq()
        async with aclosing(log.read(after=Seq(0))) as batches:
            async for batch in batches:
                found += [decode(stored.payload, stored.seq) for stored in batch]
                if found[-1].seq >= last:
                    return found
    finally:
        await log.aclose()
    raise AssertionError("The log ended.")


async def view_of(stack: Stack) -> ClusterView:
    return reduce(project, await read_log(stack), ClusterView())


async def refusals(stack: Stack) -> list[dict[str, object]]:
    """What movers have told of refused tickets."""
    events = [one.event for one in await read_log(stack)]
    return [
        {"node": event.data["node"], **one}
        for event in events
        if isinstance(event, SignalEmitted) and event.topic == "security.ticket_refused"
        for one in event.data["refused"]
    ]


class Caller:
    """A connection to a data port that says it is a mover."""

    def __init__(self, address: str, node: str = N2) -> None:
        self.socket = socket.create_connection(parse_address(address), 10)
        self.socket.sendall(wire.pack_opening(wire.Hello(cluster="test", node=node, peer=N1)))
        self.welcome = self.receive()

    def receive(self) -> wire.Welcome:
        deadline = time.monotonic() + WAIT_S
        size = wire.parse_opening_head(receive(self.socket, wire.OPENING.size, deadline))
        return wire.parse_welcome(receive(self.socket, size, deadline))

    @property
    def challenge(self) -> Challenge:
        assert self.welcome.challenge is not None
        return self.welcome.challenge

    def show(self, ticket: bytes) -> str:
        """Why it is refused; "" if it is let in."""
        self.socket.sendall(wire.pack_ticket(ticket))
        return self.receive().refusal


def ask_mover(stack: Stack, source: NodeId, challenge: Challenge) -> bytes:
    """A good ticket of n2's mover, as one of its applications gets it."""
    greeting = Greeting(cluster="test", actor="user:ada@test")
    here = BlockConnections(str(stack.socket(N2)), N2, greeting)
    try:
        return here.use(lambda connection: connection.sign_ticket(source, challenge))
    finally:
        here.close()


async def test_only_the_ticket_for_this_connection_opens_it(stack: Stack):
    view = await view_of(stack)
    node, address = view.nodes[N2], view.nodes[N1].address
    assert node.ticket_key
    first, second = Caller(address), Caller(address)
    ticket = ask_mover(stack, N1, first.challenge)
    assert "another connection" in second.show(ticket)
    assert first.show(ticket) == ""
    forger = Life(N2)
    forger.epoch = node.epoch
    third = Caller(address)
    assert "has not signed" in third.show(Seal(forger).sign(N1, BLOCKS, third.challenge))
    fourth = Caller(address)
    assert "something else" in fourth.show(ask_mover(stack, N2, fourth.challenge))
    fifth = Caller(address, "stranger")
    stranger = Life(NodeId("stranger"))
    stranger.epoch = Epoch(1)
    assert "not known" in fifth.show(Seal(stranger).sign(N1, BLOCKS, fifth.challenge))
    # A ticket for blocks is none for an artifact: the connection ends.
    first.socket.sendall(REQUEST)
    assert first.socket.recv(1) == b""
    sixth = Caller(address)
    sixth.socket.sendall(REQUEST)
    assert "no ticket" in sixth.receive().refusal
    for _ in range(50):
        assert "no ticket" in Caller(address).show(b"nonsense")
    wanted = {
        ("replayed", "n2"): 1,
        ("forged", "n2"): 1,
        ("foreign", "n2"): 2,
        ("unknown", "stranger"): 1,
        ("missing", "n2"): 1,
        ("malformed", ""): 50,
    }
    deadline = time.monotonic() + WAIT_S
    while True:
        told = await refusals(stack)
        counted: Counter[tuple[object, object]] = Counter()
        for one in told:
            counted[one["reason"], one["caller"]] += one["count"]
        if counted == wanted:
            break
        assert time.monotonic() < deadline, told
        await asyncio.sleep(0.2)
    assert {(one["node"], one["host"]) for one in told} == {("n1", "127.0.0.1")}
    assert len(told) < 20  # not an event for each


async def test_blocks_are_for_applications_of_nodes(stack: Stack):
    address = (await view_of(stack)).nodes[N1].address
    connected = socket.create_connection(parse_address(address), 10)
    channel = FrameChannel(connected, N1, 10.0)
    with pytest.raises(PermissionDenied, match="applications of its cluster's nodes alone"):
        channel.greet(Greeting(cluster="test", actor="user:eve@test"))
    connected.close()
    with stack.connect(N1) as there, stack.connect(N2) as here:
        keys = keys_for(range(5), "tickets")
        there.put_blocks(keys, [content_of(n) for n in range(5)])
        deadline = time.monotonic() + WAIT_S
        while not all(here.exists(keys)):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        targets = [bytearray(1 << 16) for _ in keys]
        assert here.get_blocks(keys, into=targets) == [True] * 5


async def test_an_application_on_no_node_gets_its_ticket_from_the_source(stack: Stack):
    address = (await view_of(stack)).nodes[N1].address
    context = Context(cluster="test", nats_url=stack.nats.url)
    keys = keys_for(range(3), "alone")
    async with tc.connect_async(context) as client:
        client.addresses._known[N1] = (address, time.monotonic() + WAIT_S)
        await client.api.connect()
        assert not any(await client.exists(keys, node=N1))
        await client.put_blocks(keys, [content_of(n) for n in range(3)], node=N1)
        assert all(await client.exists(keys, node=N1))


async def test_a_mover_that_starts_anew_is_let_in_by_its_new_key(stack: Stack):
    before = (await view_of(stack)).nodes[N2]
    with stack.connect(N1) as client:
        keys = keys_for(range(5), "anew")
        client.put_blocks(keys, [content_of(n) for n in range(5)])
    stack.kill(N2)
    stack.start_mover(N2)
    view = await view_of(stack)
    assert view.nodes[N2].ticket_key not in ("", before.ticket_key)
    caller = Caller(view.nodes[N1].address)
    assert caller.show(ask_mover(stack, N1, caller.challenge)) == ""
    with stack.connect(N2) as here:
        deadline = time.monotonic() + WAIT_S
        while not all(here.exists(keys)):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        assert here.get_blocks(keys, into=[bytearray(1 << 16) for _ in keys]) == [True] * 5
