"""The channels of one transfer: opened when a life of a peer is first asked, closed with the
transfer, or when the transfer leaves the peer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType

from tensorcast.movers.core.transfer import Broken, Completion, Progressed, Pull
from tensorcast.movers.transports.base import (
    Channel,
    Memory,
    Region,
    Share,
    Transport,
    register,
)
from tensorcast.schema.errors import TensorCastError, Unavailable
from tensorcast.schema.faults import Fault, FaultKind, from_error
from tensorcast.schema.ids import Epoch, NodeId

AddressOf = Callable[[NodeId], str]
Life = tuple[NodeId, Epoch]
Way = tuple[NodeId, Epoch, str]
"""A life of a peer, and the transport that it is reached over."""

_LACKS = frozenset({FaultKind.NOT_FOUND, FaultKind.CORRUPT})
"""Faults that say nothing about the connection."""


class Links:
    """Posts pulls to any number of peers and gathers their completions. A peer that cannot be
    reached is no exception: its pulls complete as Broken. Use it as a context: nothing writes into
    `memory` any more when that has ended, and it is registered with no transport. `share` is told
    of chunks at once."""

    def __init__(
        self,
        transports: Mapping[str, Transport],
        memory: Memory,
        address_of: AddressOf,
        share: Share | None = None,
    ) -> None:
        self._transports = transports
        self._memory = memory
        self._share = share
        self._address_of = address_of
        self._targets: dict[str, Region] = {}
        self._links: dict[Way, _Link] = {}
        self._done: list[Completion] = []
        self._waiter: asyncio.Future[None] | None = None
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> Links:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        links = list(self._links.values())
        for link in links:
            link.pump.cancel()
        try:
            await self._tasks.__aexit__(None, None, None)
        finally:
            for link in links:
                if link.channel is not None:
                    await link.channel.aclose()
            for target in self._targets.values():
                target.close()

    def post(self, pulls: Iterable[Pull]) -> None:
        """Starts the pulls. Never blocks."""
        for pull in pulls:
            way = (*pull.life, pull.transport)
            link = self._links.get(way)
            if link is not None and link.is_broken:
                self._leave(way, f"The connection to node {pull.peer} was lost.")
                link = None
            if link is None:
                link = _Link()
                self._links[way] = link
                link.pump = self._tasks.create_task(self._pump(way, link))
            link.owed[pull.number] = pull
            if link.channel is not None:
                link.channel.post([pull], self._target(pull.transport))

    def leave(self, life: Life, why: str) -> None:
        """Gives up a life of a peer: what it still owes completes as Broken, as soon as nothing of
        it writes any more. Never blocks. A later pull from it gets a new channel."""
        for way in [way for way in self._links if way[:2] == life]:
            self._leave(way, why)

    def _leave(self, way: Way, why: str) -> None:
        link = self._links.pop(way)
        link.pump.cancel()
        self._tasks.create_task(self._close(link, why))

    def _target(self, transport: str) -> Region:
        """The memory as a transport knows it, from its first pull on."""
        found = self._targets.get(transport)
        if found is None:
            found = register(self._transports[transport], self._memory, self._share)
            self._targets[transport] = found
        return found

    async def completions(self, timeout_s: float) -> Sequence[Completion]:
        """What has completed; waits for at least one, but not longer than `timeout_s`."""
        if not self._done:
            # One future and one timer: this happens for every chunk of a relay.
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = loop.call_later(timeout_s, self._wake)
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None
        done, self._done = self._done, []
        return done

    def _add(self, completions: Iterable[Completion]) -> None:
        self._done.extend(completions)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _pump(self, way: Way, link: _Link) -> None:
        peer, _, transport = way
        artifact = next(iter(link.owed.values())).artifact  # a transfer is of one artifact
        try:
            address = self._address_of(peer)
            channel = await self._transports[transport].connect(peer, address, artifact)
        except (TensorCastError, OSError) as error:
            if self._links.get(way) is link:
                del self._links[way]
            unreachable = Unavailable(f"Node {peer} cannot be reached: {error}.", node=peer)
            known = error if isinstance(error, TensorCastError) else unreachable
            self._break(link, from_error(known))
            return
        link.channel = channel
        channel.post(list(link.owed.values()), self._target(transport))
        while True:
            completions = await channel.completions()
            for completion in completions:
                if not isinstance(completion, Progressed):
                    link.owed.pop(completion.pull.number, None)
                if isinstance(completion, Broken):
                    link.is_broken |= completion.fault.kind not in _LACKS
            self._add(completions)

    async def _close(self, link: _Link, why: str) -> None:
        """Closes after the pump has ended: it may just have got the channel."""
        await asyncio.wait([link.pump])
        if link.channel is not None:
            await link.channel.aclose()
        self._break(link, Fault(kind=FaultKind.UNAVAILABLE, detail=why))

    def _break(self, link: _Link, fault: Fault) -> None:
        owed, link.owed = link.owed, {}
        self._add(Broken(pull=pull, fault=fault) for pull in owed.values())


class _Link:
    """A channel that is open, or being opened, what its peer owes, and the task that serves it."""

    def __init__(self) -> None:
        self.channel: Channel | None = None
        self.owed: dict[int, Pull] = {}
        self.is_broken = False
        self.pump: asyncio.Task[None]
