"""The answering end of rails: lends ranges of this node's replicas to the movers that ask.

A rail is served by the thread of the connection that it was set up over. What a peer can make it
hold is bounded: so many rails (the connections of the data port), so many grants of each.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import uuid
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

from tensorcast.movers.transports.base import Door, Lending, Memory, NotYet, Provider
from tensorcast.movers.transports.rdma import wire
from tensorcast.movers.transports.rdma.device import Device
from tensorcast.movers.transports.rdma.endpoint import Done, Endpoint
from tensorcast.movers.transports.rdma.line import receive_greeting, tune
from tensorcast.movers.transports.rdma.region import Regions, Registration
from tensorcast.movers.transports.rdma.talk import PUSHES, RailError, Talk
from tensorcast.movers.transports.rdma.verbs import PyverbsError
from tensorcast.movers.transports.rdma.windows import Key, Keys
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.errors import (
    Corrupt,
    NotFound,
    OutOfCapacity,
    PermissionDenied,
    TensorCastError,
    Unavailable,
)
from tensorcast.schema.ids import ArtifactId, NodeId
from tensorcast.schema.tickets import PASSING, Challenge, Refusal, Ticket, TicketRefused

GRANTS_MAX: Final = 64
GREETING_S: Final = 10.0
ARRIVAL_S: Final = 0.02
"""So often an artifact that is on its way is looked for."""

IDLE_S: Final = 60.0

Check = Callable[[ArtifactId, str], None]
"""Whether an artifact may be asked for, from a host. Raises TicketRefused."""


class RdmaServer:
    """Serves `provider`'s artifacts through the devices that there are by then. Owns neither; a
    guest of the data port: `serve_peer` is called with each connection that opens with the magic of
    this protocol. Without a `door` nobody needs a ticket."""

    def __init__(
        self,
        devices: Callable[[], Sequence[Device]],
        regions: Regions,
        provider: Provider,
        cluster: str,
        node: NodeId,
        door: Door | None = None,
    ) -> None:
        self._door = door
        self._devices = devices
        self._regions = regions
        self._provider = provider
        self._cluster = cluster
        self._node = node
        self._life = uuid.uuid4().hex

    def serve_peer(self, connected: socket.socket) -> None:
        """Serves a rail until its peer is done. Raises EOFError, OSError, TensorCastError."""
        tune(connected, GREETING_S)
        hello = wire.parse_hello(receive_greeting(connected, GREETING_S))
        ticket = self._admit(connected, hello)
        endpoint = self._open(connected, hello)
        try:
            check = self._check(ticket)
            served = _Served(connected, endpoint, self._regions, self._provider, check)
            with contextlib.closing(served):
                served.run()
        except RailError as error:
            raise EOFError(error.meaning.text) from error
        except PyverbsError as error:
            raise Unavailable(f"A rail of node {hello.node} failed: {error}.") from error
        finally:
            endpoint.close()

    def _admit(self, connected: socket.socket, hello: wire.Hello) -> Ticket | None:
        """Checks who calls, by its ticket if one is needed. Raises PermissionDenied."""
        refusal = ""
        if hello.cluster != self._cluster:
            refusal = f"Node {self._node} belongs to another cluster than {hello.node}."
        elif hello.peer != self._node:
            refusal = f"This is node {self._node}, not {hello.peer}."
        if refusal:
            self._refuse(connected, PermissionDenied(refusal), is_final=True)
        challenge = self._door.challenge(hello.node) if self._door is not None else None
        if self._door is None or challenge is None:
            return None
        host = connected.getpeername()[0]
        try:
            connected.sendall(wire.pack_greeting(self._welcome(challenge=challenge)))
            shown = receive_greeting(connected, GREETING_S)
            ticket = self._door.admit(shown, challenge, host)
            if ticket.node != hello.node:
                raise self._door.refuse(Refusal.FOREIGN, hello.node, host)
        except TicketRefused as refused:
            self._refuse(connected, refused, is_final=refused.refusal not in PASSING)
        return ticket

    def _check(self, ticket: Ticket | None) -> Check:
        """What raises TicketRefused for another artifact than the ticket names."""

        def check(artifact: ArtifactId, host: str) -> None:
            if self._door is not None and ticket is not None and artifact != ticket.what:
                raise self._door.refuse(Refusal.FOREIGN, ticket.node, host)

        return check

    def _open(self, connected: socket.socket, hello: wire.Hello) -> Endpoint:
        """The other end of the rail; tells the peer of it. Raises Unavailable."""
        devices = self._devices()
        if not devices:
            self._refuse(connected, Unavailable(f"Node {self._node} has no RDMA device."))
        device = devices[hello.device % len(devices)]
        with contextlib.ExitStack() as opened:
            try:
                endpoint = Endpoint(device)
                opened.callback(endpoint.close)
                endpoint.connect(hello.card)
            except (TensorCastError, PyverbsError) as error:
                self._refuse(connected, Unavailable(f"Node {self._node}: {error}"))
            connected.sendall(wire.pack_greeting(self._welcome(card=endpoint.card())))
            opened.pop_all()
        return endpoint

    def _welcome(
        self, card: wire.Card | None = None, challenge: Challenge | None = None
    ) -> wire.Welcome:
        return wire.Welcome(
            node=self._node,
            life=self._life,
            devices=len(self._devices()),
            card=card,
            challenge=challenge,
        )

    def _refuse(
        self, connected: socket.socket, error: TensorCastError, *, is_final: bool = False
    ) -> NoReturn:
        welcome = wire.Welcome(
            node=self._node, devices=len(self._devices()), refusal=str(error), is_final=is_final
        )
        connected.sendall(wire.pack_greeting(welcome))
        raise error


class _Granted:
    """What was lent for one pull."""

    def __init__(self, ask: wire.Ask, lending: Lending, held: contextlib.ExitStack) -> None:
        self.ask = ask
        self.lending = lending
        self.held = held
        self.key: Key | None = None
        self.told = ChunkSet()

    @property
    def wanted(self) -> ChunkSet:
        size = self.lending.chunk_bytes
        return ChunkSet(((self.ask.start // size, -(-self.ask.stop // size)),))

    @property
    def waits(self) -> bool:
        """Whether more chunks of the pull may come that the peer wants to hear of."""
        return self.ask.waits and bool((self.wanted - self.told).ranges)

    def runs(self, chunks: ChunkSet) -> tuple[tuple[int, int], ...] | None:
        """What the peer is told."""
        self.told = chunks
        total = -(-self.lending.layout.size_bytes // self.lending.chunk_bytes)
        return wire.runs_of(chunks, total)


class _Served:
    """One rail, and what is lent over it. Owns both until `close`."""

    def __init__(
        self,
        connected: socket.socket,
        endpoint: Endpoint,
        regions: Regions,
        provider: Provider,
        check: Check,
    ) -> None:
        self._host = connected.getpeername()[0]
        self._check = check
        self._talk = Talk(connected, endpoint, self._hear, self._settle)
        self._keys = Keys(endpoint, regions)
        self._regions = regions
        self._provider = provider
        self._coming: dict[int, wire.Ask] = {}
        self._granted: dict[int, _Granted] = {}
        self._pushing: dict[int, contextlib.ExitStack] = {}
        self._numbers = itertools.count(PUSHES)

    def run(self) -> None:
        """Until the peer is done. Raises RailError, Corrupt, PyverbsError."""
        while True:
            self._look()
            self._talk.send()
            self._talk.turn(ARRIVAL_S if self._coming else IDLE_S)

    def close(self) -> None:
        """Takes everything back. Safe to repeat."""
        with contextlib.ExitStack() as closing:  # keys and queue pair first, then the memory
            for held in self._pushing.values():
                closing.callback(held.close)
            for one in self._granted.values():
                closing.callback(one.held.close)
            closing.callback(self._talk.close)
            closing.callback(self._keys.close)
            self._granted, self._pushing = {}, {}

    # ---- what the peer asks ----------------------------------------------------------------

    def _hear(self, message: wire.Message) -> None:
        match message:
            case wire.Ask():
                open_ = len(self._granted) + len(self._coming) + len(self._pushing)
                if open_ >= GRANTS_MAX:
                    raise Corrupt(f"The peer asks for more than {GRANTS_MAX} grants.")
                if message.grant in self._granted or message.grant in self._coming:
                    raise Corrupt(f"The peer asks for grant {message.grant} twice.")
                self._check(message.artifact, self._host)
                self._ask(message)
            case wire.Release():
                self._release(message.grant)
            case _:
                raise Corrupt("The peer answers what nobody asked.")

    def _ask(self, ask: wire.Ask) -> None:
        try:
            self._lend(ask)
        except NotYet:
            if ask.grant not in self._coming:
                self._coming[ask.grant] = ask
                self._talk.say(wire.Later(ask.grant))
        except NotFound:
            self._refuse(ask, is_lacking=True, why="")
        except (Unavailable, OutOfCapacity) as error:
            self._refuse(ask, is_lacking=False, why=str(error))

    def _refuse(self, ask: wire.Ask, *, is_lacking: bool, why: str) -> None:
        self._coming.pop(ask.grant, None)
        self._talk.say(wire.Refuse(ask.grant, is_lacking, why[:1000]))

    def _lend(self, ask: wire.Ask) -> None:
        """Raises NotFound, NotYet, Unavailable when it cannot be READ, OutOfCapacity."""
        with contextlib.ExitStack() as held:
            lending = held.enter_context(self._provider.lend(ask.artifact))
            memory = _memory_of(lending, ask)
            self._regions.use(memory)
            held.callback(self._regions.leave, memory)
            if may_push(ask, lending):
                device = self._talk.endpoint.device
                ours = self._regions.register(memory, device, is_remote=False)
                self._push(ask, ours, held.pop_all())
                return
            granted = _Granted(ask, lending, held)
            if granted.ask.waits and lending.bell is not None:
                held.enter_context(lending.bell.heard_by(self._talk.wake.ring))
            granted.key = self._keys.lend(memory, ask.start, ask.stop)
            granted.held = held.pop_all()
        self._coming.pop(ask.grant, None)
        self._granted[ask.grant] = granted
        runs = granted.runs(lending.chunks())
        key = granted.key
        self._talk.say(wire.Grant(ask.grant, key.address, key.key, runs))

    def _push(self, ask: wire.Ask, ours: Registration, held: contextlib.ExitStack) -> None:
        """Puts the bytes where the peer wants them; what is lent is given back when they are
        there."""
        assert ask.landing is not None, "may_push has looked"
        self._coming.pop(ask.grant, None)
        number = next(self._numbers)
        self._pushing[number] = held
        source = ours.base + ask.start, ours.lkey
        self._talk.say(wire.Push(ask.grant, number, source, ask.stop - ask.start, ask.landing))

    def _release(self, number: int) -> None:
        self._coming.pop(number, None)
        granted = self._granted.pop(number, None)
        if granted is not None:
            assert granted.key is not None, "it was told"
            self._keys.end(granted.key, granted.held.close)

    def _settle(self, done: Done) -> None:
        if (held := self._pushing.pop(done.number, None)) is not None:
            held.close()
            return
        self._keys.settle(done)

    # ---- what has come meanwhile -----------------------------------------------------------

    def _look(self) -> None:
        """Tells of chunks that have come, and of artifacts."""
        for ask in list(self._coming.values()):
            self._ask(ask)
        for granted in self._granted.values():
            if granted.waits:
                chunks = granted.lending.chunks()
                if ((chunks - granted.told) & granted.wanted).ranges:
                    self._talk.say(wire.Holds(granted.ask.grant, granted.runs(chunks)))


def may_push(ask: wire.Ask, lending: Lending) -> bool:
    """Whether what is asked for is small, wanted so, and all there; of a replica that still fills,
    the peer wants to know more than these bytes."""
    total = -(-lending.layout.size_bytes // lending.chunk_bytes)
    return (
        ask.landing is not None
        and ask.stop - ask.start <= wire.PUSH_BYTES
        and len(lending.chunks()) >= total
    )


def _memory_of(lending: Lending, ask: wire.Ask) -> Memory:
    """The memory that can be READ. Raises Unavailable."""
    if lending.memory is None:
        raise Unavailable(f"artifact {ask.artifact} is not in memory here.")
    if not 0 <= ask.start < ask.stop <= lending.layout.size_bytes or lending.chunk_bytes < 1:
        raise Unavailable(f"artifact {ask.artifact} is another one here.")
    return lending.memory
