"""The channels of one transfer: opened when a life of a peer is first asked, closed with the
transfer, or when the transfer leaves the peer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType

from tensorcast.movers.core.transfer import Broken, Completion, Progressed, Pull
from tensorcast.movers.transports.base import Channel, Region, Transport
from tensorcast.schema.errors import TensorCastError, Unavailable
from tensorcast.schema.faults import Fault, FaultKind, from_error
from tensorcast.schema.ids import Epoch, NodeId

AddressOf = Callable[[NodeId], str]
Life = tuple[NodeId, Epoch]
_LACKS = frozenset({FaultKind.NOT_FOUND, FaultKind.CORRUPT})
"""Faults that say nothing about the connection."""


class Links:
    """Posts pulls to any number of peers and gathers their completions. A peer that cannot be
    reached is no exception: its pulls complete as Broken. Use it as a context: nothing writes into
    `target` any more when that has ended."""

    def __init__(self, transport: Transport, target: Region, address_of: AddressOf) -> None:
        self._transport = transport
        self._target = target
        self._address_of = address_of
        self._links: dict[Life, _Link] = {}
        self._done: asyncio.Queue[Completion] = asyncio.Queue()
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

    def post(self, pulls: Iterable[Pull]) -> None:
        """Starts the pulls. Never blocks."""
        for pull in pulls:
            link = self._links.get(pull.life)
            if link is not None and link.is_broken:
                self.leave(pull.life, f"The connection to node {pull.peer} was lost.")
                link = None
            if link is None:
                link = _Link()
                self._links[pull.life] = link
                link.pump = self._tasks.create_task(self._pump(pull.life, link))
            link.owed[pull.number] = pull
            if link.channel is not None:
                link.channel.post([pull], self._target)

    def leave(self, life: Life, why: str) -> None:
        """Gives up a life of a peer: what it still owes completes as Broken, as soon as nothing of
        it writes any more. Never blocks. A later pull from it gets a new channel."""
        link = self._links.pop(life, None)
        if link is not None:
            link.pump.cancel()
            self._tasks.create_task(self._close(link, why))

    async def completions(self, timeout_s: float) -> Sequence[Completion]:
        """What has completed; waits for at least one, but not longer than `timeout_s`."""
        done: list[Completion] = []
        try:
            async with asyncio.timeout(timeout_s):
                done.append(await self._done.get())
        except TimeoutError:
            return ()
        while not self._done.empty():
            done.append(self._done.get_nowait())
        return done

    async def _pump(self, life: Life, link: _Link) -> None:
        peer, _ = life
        try:
            channel = await self._transport.connect(peer, self._address_of(peer))
        except (TensorCastError, OSError) as error:
            if self._links.get(life) is link:
                del self._links[life]
            unreachable = Unavailable(f"Node {peer} cannot be reached: {error}.", node=peer)
            known = error if isinstance(error, TensorCastError) else unreachable
            self._break(link, from_error(known))
            return
        link.channel = channel
        channel.post(list(link.owed.values()), self._target)
        while True:
            for completion in await channel.completions():
                if not isinstance(completion, Progressed):
                    link.owed.pop(completion.pull.number, None)
                if isinstance(completion, Broken):
                    link.is_broken |= completion.fault.kind not in _LACKS
                self._done.put_nowait(completion)

    async def _close(self, link: _Link, why: str) -> None:
        """Closes after the pump has ended: it may just have got the channel."""
        await asyncio.wait([link.pump])
        if link.channel is not None:
            await link.channel.aclose()
        self._break(link, Fault(kind=FaultKind.UNAVAILABLE, detail=why))

    def _break(self, link: _Link, fault: Fault) -> None:
        owed, link.owed = link.owed, {}
        for pull in owed.values():
            self._done.put_nowait(Broken(pull=pull, fault=fault))


class _Link:
    """A channel that is open, or being opened, what its peer owes, and the task that serves it."""

    def __init__(self) -> None:
        self.channel: Channel | None = None
        self.owed: dict[int, Pull] = {}
        self.is_broken = False
        self.pump: asyncio.Task[None]
