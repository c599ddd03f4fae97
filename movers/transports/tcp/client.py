"""The TCP transport: channels of several connections, each served by a thread."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Sequence

from tensorcast.movers.core.transfer import Broken, Completion, Pull
from tensorcast.movers.transports.base import Capabilities, MemoryKind, MemoryRegion, Region
from tensorcast.movers.transports.tcp import wire
from tensorcast.movers.transports.tcp.stream import ClientLimits, Stream, open_stream
from tensorcast.movers.transports.tcp.work import Posted, Work
from tensorcast.schema.errors import TensorCastError
from tensorcast.schema.faults import Fault, FaultKind
from tensorcast.schema.ids import NodeId


class TcpChannel:
    """A link to one peer over the given connections, which it owns. Satisfies `base.Channel`.

    Must be made, used and closed in the event loop that is running then.
    """

    def __init__(
        self, peer: NodeId, connections: Sequence[socket.socket], limits: ClientLimits
    ) -> None:
        self._peer = peer
        self._loop = asyncio.get_running_loop()
        self._work = Work()
        self._lock = threading.Lock()
        self._completed: list[Completion] = []
        self._arrived = asyncio.Event()
        self.is_closed = False
        self._alive = len(connections)
        self._streams = [Stream(c, self._work, self._deliver, limits) for c in connections]
        self._threads = [
            threading.Thread(target=self._run, args=(s,), name=f"tcp-pull-{peer}", daemon=True)
            for s in self._streams
        ]
        for thread in self._threads:
            thread.start()

    def post(self, pulls: Sequence[Pull], target: Region) -> None:
        """Starts pulls into `target`. Never blocks. With a peer that is lost they complete as
        Broken at once."""
        if not self._work.put([Posted(pull, target.memory) for pull in pulls]):
            self._deliver([self._lost(pull) for pull in pulls])

    async def completions(self) -> Sequence[Completion]:
        """Waits for at least one completion or progress; returns all that there is, and () only
        once the channel is closed."""
        await self._arrived.wait()
        with self._lock:
            if self.is_closed:
                return ()
            completed, self._completed = self._completed, []
            self._arrived.clear()
        return completed

    async def aclose(self) -> None:
        """Gives up what is in flight. When it returns, nothing writes into a target any more and
        all threads and connections are gone. Safe to repeat."""
        self.is_closed = True
        self._arrived.set()
        self._work.close()
        for stream in self._streams:
            stream.interrupt()
        await asyncio.shield(self._loop.run_in_executor(None, self._join))

    def _join(self) -> None:
        for thread in self._threads:
            thread.join()

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
        if was_empty:
            # The loop is closed if the mover stops at this moment: then nobody waits any more.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._arrived.set)


class TcpTransport:
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
    ) -> None:
        self._cluster = cluster
        self._node = node
        self._limits = limits
        self._channels: list[TcpChannel] = []

    def register(self, memory: memoryview, kind: MemoryKind = MemoryKind.DRAM) -> Region:
        """Memory needs no preparation; `close` the region before the memory goes."""
        return MemoryRegion(memory)

    async def connect(self, peer: NodeId, address: str) -> TcpChannel:
        """A channel to the mover of `peer` at `address`. Raises Unavailable, or
        PermissionDenied when the peer belongs to another cluster or is another node."""
        loop = asyncio.get_running_loop()
        opening = loop.run_in_executor(None, self._open, peer, address)
        try:
            connections = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_opened)
            raise
        channel = TcpChannel(peer, connections, self._limits)
        self._channels = [c for c in self._channels if not c.is_closed]
        self._channels.append(channel)
        return channel

    async def aclose(self) -> None:
        """Closes the channels that are still open. Safe to repeat."""
        channels, self._channels = self._channels, []
        for channel in channels:
            await channel.aclose()

    def _open(self, peer: NodeId, address: str) -> list[socket.socket]:
        """Opens all connections of a channel, or as many as the peer grants, at least one."""
        hello = wire.Hello(cluster=self._cluster, node=self._node, peer=peer)
        opened = [open_stream(peer, address, hello, self._limits)]
        for _ in range(self._limits.streams - 1):
            with contextlib.suppress(TensorCastError):
                opened.append(open_stream(peer, address, hello, self._limits))
        return opened


def _close_opened(opening: asyncio.Future[list[socket.socket]]) -> None:
    """Whoever wanted the connections has gone."""
    if opening.cancelled() or opening.exception() is not None:
        return
    for connected in opening.result():
        connected.close()
