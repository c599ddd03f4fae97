"""A link to one peer over one or several rails, each served by a thread."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from tensorcast.movers.core.reading import Reading
from tensorcast.movers.core.transfer import Broken, Completion, Pull
from tensorcast.movers.transports.base import Region
from tensorcast.movers.transports.rdma import wire
from tensorcast.movers.transports.rdma.device import Device
from tensorcast.movers.transports.rdma.endpoint import Endpoint
from tensorcast.movers.transports.rdma.line import receive_greeting, tune
from tensorcast.movers.transports.rdma.rail import Rail
from tensorcast.movers.transports.rdma.region import RdmaRegion
from tensorcast.movers.transports.rdma.statuses import Meaning
from tensorcast.movers.transports.rdma.verbs import PyverbsError
from tensorcast.movers.transports.rdma.work import Posted, Work
from tensorcast.schema.errors import (
    Corrupt,
    OutOfCapacity,
    PermissionDenied,
    TensorCastError,
    Unavailable,
)
from tensorcast.schema.ids import NodeId
from tensorcast.schema.tickets import Challenge

GATHER_S = 0.002
"""Completions that come faster than this are taken together."""


REBUILDS_S = 60.0
"""A rail that failed is replaced so often as `rebuilds_max` says in so long."""


class Opened(msgspec.Struct, frozen=True):
    """Both ends of a rail are there."""

    connected: socket.socket
    endpoint: Endpoint

    def close(self) -> None:
        """Nobody wants it. Safe to repeat."""
        self.endpoint.close()
        self.connected.close()


class Dialer:
    """Sets up the rails of one channel. Safe in any thread. `is_reached`: the peer's data port has
    answered; `devices`: how many the peer has, None as long as it has not said so."""

    def __init__(
        self,
        cluster: str,
        node: NodeId,
        peer: NodeId,
        address: str,
        *,
        connect_s: float,
        sign: Callable[[Challenge], bytes] | None = None,
    ) -> None:
        self.peer = peer
        self._sign = sign
        self._address = address
        self._cluster = cluster
        self._node = node
        self._connect_s = connect_s
        self._life: str | None = None
        self.is_reached = False
        self.devices: int | None = None

    def dial(self, device: Device, theirs: int) -> Opened:
        """A rail between a device of ours and the peer's device of that number. Raises
        Unavailable, or PermissionDenied."""
        try:
            return self._open(device, theirs)
        except (EOFError, OSError, Corrupt, OutOfCapacity, PyverbsError) as error:
            detail = f"Node {self.peer} at {self._address} cannot be reached over RDMA: {error}."
            raise Unavailable(detail, node=self.peer) from error

    def _open(self, device: Device, theirs: int) -> Opened:
        host, _, port = self._address.rpartition(":")
        where = (host.strip("[]"), int(port))
        with contextlib.ExitStack() as opened:
            connected = socket.create_connection(where, self._connect_s)
            opened.callback(connected.close)
            self.is_reached = True
            tune(connected, 2 * self._connect_s)
            endpoint = Endpoint(device, lands=True)
            opened.callback(endpoint.close)
            hello = wire.Hello(
                cluster=self._cluster,
                node=self._node,
                peer=self.peer,
                device=theirs,
                card=endpoint.card(),
            )
            connected.sendall(wire.pack_greeting(hello))
            welcome = self._receive_welcome(connected)
            if welcome.challenge is not None:
                connected.sendall(wire.pack_ticket(self._answer(welcome.challenge)))
                welcome = self._receive_welcome(connected)
            if welcome.card is None:
                raise Corrupt("The peer asks for a second ticket.")
            endpoint.connect(welcome.card)
            opened.pop_all()
            return Opened(connected, endpoint)

    def _answer(self, challenge: Challenge) -> bytes:
        if self._sign is None:
            detail = f"Node {self.peer} asks for a ticket, and nothing here signs one."
            raise PermissionDenied(detail, node=self.peer)
        return self._sign(challenge)

    def _receive_welcome(self, connected: socket.socket) -> wire.Welcome:
        welcome = wire.parse_welcome(receive_greeting(connected, 2 * self._connect_s))
        self.devices = welcome.devices or self.devices
        if welcome.is_final:
            raise PermissionDenied(welcome.refusal, node=self.peer)
        if welcome.refusal:
            raise Unavailable(welcome.refusal, node=self.peer)
        if welcome.challenge is None:
            self._check(welcome)
        return welcome

    def _check(self, welcome: wire.Welcome) -> None:
        if welcome.card is None:
            raise Unavailable(f"Node {self.peer} gives no queue pair.", node=self.peer)
        if self._life not in (None, welcome.life):
            raise Unavailable(f"Node {self.peer} was started anew.", node=self.peer)
        self._life = welcome.life


class RdmaChannel:
    """Satisfies `base.Channel`. Must be made, used and closed in the event loop that runs then."""

    def __init__(
        self,
        dialer: Dialer,
        rails: Sequence[tuple[Opened, Device, int]],
        *,
        verify: bool,
        rebuilds_max: int,
    ) -> None:
        self._dialer = dialer
        self._verify = verify
        self._rebuilds_max = rebuilds_max
        self._loop = asyncio.get_running_loop()
        self._work = Work()
        self._lock = threading.Lock()
        self._completed: list[Completion] = []
        self._arrived = asyncio.Event()
        self._taken_at = 0.0
        self.is_closed = False
        self.faults: list[str] = []
        self._why = Meaning(text="the channel is closed").text
        self._read_bytes = 0
        self._alive = len(rails)
        self._rails: dict[int, Rail] = {}
        self._threads = [
            threading.Thread(target=self._serve, args=(n, *rail), name="rdma-pull", daemon=True)
            for n, rail in enumerate(rails)
        ]
        for n, (opened, _, _) in enumerate(rails):
            self._rails[n] = self._rail(opened)
        for thread in self._threads:
            thread.start()

    @property
    def rails(self) -> int:
        """How many rails are alive."""
        return self._alive

    @property
    def read_bytes(self) -> int:
        """All that was READ, also what was of no use."""
        return self._read_bytes + sum(rail.read_bytes for rail in self._rails.values())

    def post(self, pulls: Sequence[Pull], target: Region) -> None:
        """Starts pulls into `target`. Never blocks. With a peer that is lost they complete as
        Broken at once."""
        assert isinstance(target, RdmaRegion), "made by this transport's `register`"
        now = time.monotonic()
        posted = [Posted(Reading(pull, now, target.share), target) for pull in pulls]
        if not self._work.put(posted):
            self._deliver([self._lose(one) for one in posted])

    async def completions(self) -> Sequence[Completion]:
        """Waits for at least one completion or progress; returns all that there is, and () only
        once the channel is closed."""
        await self._arrived.wait()
        if time.monotonic() < self._taken_at + GATHER_S:
            await asyncio.sleep(GATHER_S)
        self._taken_at = time.monotonic()
        with self._lock:
            if self.is_closed:
                return ()
            completed, self._completed = self._completed, []
            self._arrived.clear()
        return completed

    async def aclose(self) -> None:
        """Gives up what is in flight. When it returns, nothing writes into a target any more and
        all threads, connections and queue pairs are gone. Safe to repeat."""
        self._stop()
        self._arrived.set()
        await asyncio.shield(self._loop.run_in_executor(None, self.close))

    def close(self) -> None:
        """As `aclose`, from another thread or after the event loop has ended. Blocks."""
        self._stop()
        for thread in self._threads:
            thread.join()

    def _stop(self) -> None:
        with self._lock:
            self.is_closed = True
            rails = list(self._rails.values())
        self._work.close()
        for rail in rails:
            rail.stop()

    # ---- rails -----------------------------------------------------------------------------

    def _rail(self, opened: Opened) -> Rail:
        return Rail(
            opened.connected, opened.endpoint, self._work, self._deliver, verify=self._verify
        )

    def _serve(self, number: int, opened: Opened, device: Device, theirs: int) -> None:
        """The thread of a rail. However it ends, what the rail had taken goes on or breaks."""
        left: list[Posted] = []
        try:
            self._keep(number, device, theirs, left)
        finally:
            self._end(left)

    def _keep(self, number: int, device: Device, theirs: int, left: list[Posted]) -> None:
        """Runs a rail, and another one in its place if it fails; `left` is what the last one leaves
        undone."""
        rail, rebuilt = self._rails[number], deque[float]()
        while True:
            try:
                failure = rail.run()
            finally:
                left += rail.left()
            if failure is None:
                return
            self.faults.append(failure.text)
            self._why = failure.text
            now = time.monotonic()
            while rebuilt and now - rebuilt[0] > REBUILDS_S:
                rebuilt.popleft()
            if failure.is_path or len(rebuilt) >= self._rebuilds_max:
                return
            again = self._rebuild(number, device, theirs)
            if again is None:
                return
            rail = again
            rebuilt.append(now)
            if not self._work.put(left, first=True):
                rail.close()
                return
            left.clear()

    def _rebuild(self, number: int, device: Device, theirs: int) -> Rail | None:
        """Another rail in place of one that failed; None when that cannot be."""
        try:
            opened = self._dialer.dial(device, theirs)
        except TensorCastError as error:
            self.faults.append(str(error))
            return None
        with self._lock:
            with contextlib.ExitStack() as closing:
                closing.callback(opened.close)
                rail = self._rail(opened)
                closing.pop_all()
            self._read_bytes += self._rails[number].read_bytes
            self._rails[number] = rail
            if self.is_closed:
                rail.stop()
        return rail

    def _end(self, left: Sequence[Posted]) -> None:
        """A rail ends: what it leaves goes to the others, and with the last one everything
        breaks."""
        with self._lock:
            self._alive -= 1
            is_last = not self._alive
        if not is_last and self._work.put(left, first=True):
            return
        lost = [*left, *(self._work.close() if is_last else ())]
        self._deliver([self._lose(one) for one in lost])

    def _lose(self, posted: Posted) -> Broken:
        return posted.reading.lose(self._why)

    def _deliver(self, completions: Sequence[Completion]) -> None:
        """Hands completions to the event loop, which is woken once for all that wait there."""
        if not completions:
            return
        with self._lock:
            was_empty = not self._completed
            self._completed.extend(completions)
        if was_empty:
            # The loop is closed if the mover stops at this moment: then nobody waits any more.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._arrived.set)
