"""The TCP transport: channels of several connections, each served by a thread."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tensorcast.movers.core.streams import Path, first_streams
from tensorcast.movers.core.transfer import Broken, Completion, Pull
from tensorcast.movers.pages import Prefaulter
from tensorcast.movers.transports.base import (
    Capabilities,
    MemoryKind,
    Region,
    SignTicket,
    TakesAnyMemory,
    signer_for,
)
from tensorcast.movers.transports.tcp import wire
from tensorcast.movers.transports.tcp.dialing import ClientLimits, Dialer
from tensorcast.movers.transports.tcp.growth import Growth
from tensorcast.movers.transports.tcp.sockets import is_on_this_host, window_bytes_max
from tensorcast.movers.transports.tcp.stream import Stream
from tensorcast.movers.transports.tcp.work import Posted, Work
from tensorcast.schema.errors import TensorCastError
from tensorcast.schema.faults import Fault, FaultKind
from tensorcast.schema.ids import ArtifactId, NodeId
from tensorcast.storage.crew import count_cores

DIALS_MAX: Final = 64
"""Connections that are being opened at once; a peer that is away takes one of them for a while."""

GATHER_S: Final = 0.002
"""Completions that come faster than this are taken together."""


class TcpChannel:
    """A link to one peer over the given connections, which it owns. Satisfies `base.Channel`.

    Must be made, used and closed in the event loop that is running then.
    """

    def __init__(
        self, dialer: Dialer, connections: Sequence[socket.socket], limits: ClientLimits
    ) -> None:
        self._peer = dialer.peer
        self._dialer = dialer
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._work = Work()
        self._pages = Prefaulter()
        self._lock = threading.Lock()
        self._completed: list[Completion] = []
        self._arrived = asyncio.Event()
        self._taken_at = 0.0
        self.is_closed = False
        self._is_local = is_on_this_host(connections[0])
        self._growth = Growth(len(connections))
        self._streams: list[Stream] = []
        self._threads: list[threading.Thread] = []
        self._alive = 0
        self._is_growing = self._has_spare = False
        with self._lock:
            for connected in connections:
                self._start(connected)

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return self._alive

    def post(self, pulls: Sequence[Pull], target: Region) -> None:
        """Starts pulls into `target`. Never blocks. With a peer that is lost they complete as
        Broken at once."""
        with self._lock:
            self._growth.post(pulls)
            if self._limits.streams is None and any(pull.wait_s for pull in pulls):
                self._add_spare()
        now = time.monotonic()
        if not self._work.put([Posted(pull, target.memory, now, target.share) for pull in pulls]):
            self._deliver([self._lost(pull) for pull in pulls])

    async def completions(self) -> Sequence[Completion]:
        """Waits for at least one completion or progress; returns all that there is, and () only
        once the channel is closed. Where much comes while there is enough to do it gathers for a
        moment: each turn of the event loop holds up the threads that receive."""
        await self._arrived.wait()
        if time.monotonic() < self._taken_at + GATHER_S and self._work.has_waiting:
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
        all threads and connections are gone. Safe to repeat."""
        with self._lock:
            self.is_closed = True
            streams = list(self._streams)
        self._arrived.set()
        self._dialer.stop()
        self._work.close()
        for stream in streams:
            stream.interrupt()
        await asyncio.shield(self._loop.run_in_executor(None, self._join))

    def _join(self) -> None:
        for thread in self._threads:
            thread.join()
        self._pages.close()

    # ---- connections -----------------------------------------------------------------------

    def _start(self, connected: socket.socket) -> None:
        """One more connection, with a thread of its own. The caller holds the lock."""
        stream = Stream(
            connected, self._dialer, self._work, self._pages, self._deliver, self._limits
        )
        self._alive += 1
        self._streams.append(stream)
        self._begin(self._run, stream)

    def _begin(self, work: Callable[..., None], *arguments: Stream) -> None:
        name = f"tcp-pull-{self._peer}"
        thread = threading.Thread(target=work, args=arguments, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self, stream: Stream) -> None:
        try:
            stream.run()
        finally:
            self._end_stream()

    def _end_stream(self) -> None:
        """The last connection that ends takes the waiting pulls with it."""
        with self._lock:
            self._alive -= 1
            is_last = not self._alive
        if is_last:
            left = self._work.close()
            self._deliver([self._lost(posted.pull) for posted in left])

    def _grow(self) -> None:
        """Opens more connections where they help."""
        with contextlib.suppress(OSError, TensorCastError):
            info = self._streams[0].info()
            path = Path(
                rtt_s=info.rtt_s,
                least_rtt_s=info.least_rtt_s,
                loss=info.disordered,
                window_bytes=window_bytes_max(),
                is_local=self._is_local,
            )
            with self._lock:
                added = self._growth.more(path, count_cores())
            for _ in range(added):
                self._open_another()
            self._is_growing = False

    def _add_spare(self) -> None:
        """A connection for what can be had while another one waits. The caller holds the lock."""
        if not self._has_spare and not self.is_closed and self._alive:
            self._has_spare = True
            self._begin(self._open_another)

    def _open_another(self) -> None:
        with contextlib.suppress(OSError, TensorCastError):
            connected = self._dialer.dial()
            with self._lock:
                if not self.is_closed and self._alive:
                    self._start(connected)
                    return
            connected.close()

    # ---- completions -----------------------------------------------------------------------

    def _lost(self, pull: Pull) -> Broken:
        detail = f"The connection to node {self._peer} is lost."
        return Broken(pull=pull, fault=Fault(kind=FaultKind.UNAVAILABLE, detail=detail))

    def _deliver(self, completions: Sequence[Completion]) -> None:
        """Hands completions to the event loop, which is woken once for all that wait there."""
        if not completions:
            return
        with self._lock:
            was_empty = not self._completed
            self._completed.extend(completions)
            is_due = self._growth.note(completions) and self._limits.streams is None
            if is_due and not self._is_growing and not self.is_closed:
                self._is_growing = True
                self._begin(self._grow)
        if was_empty:
            # The loop is closed if the mover stops at this moment: then nobody waits any more.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._arrived.set)


class TcpTransport(TakesAnyMemory):
    """Pulls from the `TcpServer`s of the same cluster. Satisfies `base.Transport`."""

    name = "tcp"
    capabilities = Capabilities(
        sources=frozenset({MemoryKind.DRAM, MemoryKind.FILE}),
        targets=frozenset({MemoryKind.DRAM}),
        crosses_nodes=True,
        pulls_in_flight_max=4,
    )

    def __init__(
        self,
        cluster: str,
        node: NodeId,
        limits: ClientLimits = ClientLimits(),  # noqa: B008  (a frozen value)
        sign: SignTicket | None = None,
    ) -> None:
        self._cluster = cluster
        self._node = node
        self._limits = limits
        self._sign = sign
        self._channels: list[TcpChannel] = []
        # Threads of its own: peers that do not answer must not keep others from working.
        self._dialing = ThreadPoolExecutor(DIALS_MAX, thread_name_prefix="tcp-dial")

    async def connect(
        self, peer: NodeId, address: str, artifact: ArtifactId | None = None
    ) -> TcpChannel:
        """A channel to the mover of `peer` at `address`. Raises Unavailable, or PermissionDenied
        when the peer belongs to another cluster, is another node or takes no ticket of ours."""
        hello = wire.Hello(cluster=self._cluster, node=self._node, peer=peer)
        dialer = Dialer(peer, address, hello, self._limits, signer_for(self._sign, peer, artifact))
        loop = asyncio.get_running_loop()
        opening = loop.run_in_executor(self._dialing, self._open, dialer)
        try:
            connections = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_opened)
            raise
        channel = TcpChannel(dialer, connections, self._limits)
        self._channels = [c for c in self._channels if not c.is_closed]
        self._channels.append(channel)
        return channel

    async def aclose(self) -> None:
        """Closes the channels that are still open. Safe to repeat."""
        channels, self._channels = self._channels, []
        for channel in channels:
            await channel.aclose()
        self._dialing.shutdown(wait=False, cancel_futures=True)

    def _open(self, dialer: Dialer) -> list[socket.socket]:
        """Opens the first connections of a channel, or as many as the peer grants, at least one."""
        opened = [dialer.dial()]
        first = first_streams(count_cores(), is_local=is_on_this_host(opened[0]))
        for _ in range((self._limits.streams or first) - 1):
            with contextlib.suppress(TensorCastError):
                opened.append(dialer.dial())
        return opened


def _close_opened(opening: asyncio.Future[list[socket.socket]]) -> None:
    """Whoever wanted the connections has gone."""
    if opening.cancelled() or opening.exception() is not None:
        return
    for connected in opening.result():
        connected.close()
