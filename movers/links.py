"""The channels of one transfer: opened when a life of a peer is first asked, closed with the
transfer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType

from tensorcast.movers.core.transfer import Broken, Completion, Pull
from tensorcast.movers.transports.base import Channel, Region, Transport
from tensorcast.schema.errors import TensorCastError, Unavailable
from tensorcast.schema.faults import from_error
from tensorcast.schema.ids import Epoch, NodeId

AddressOf = Callable[[NodeId], str]
Life = tuple[NodeId, Epoch]


class Links:
    """Posts pulls to any number of peers and gathers their completions. A peer that cannot be
    reached is no exception: its pulls complete as Broken. Use it as a context: nothing writes into
    `target` any more when that has ended."""

    def __init__(self, transport: Transport, target: Region, address_of: AddressOf) -> None:
        self._transport = transport
        self._target = target
        self._address_of = address_of
        self._channels: dict[Life, Channel] = {}
        self._waiting: dict[Life, list[Pull]] = {}
        self._done: asyncio.Queue[Completion] = asyncio.Queue()
        self._tasks = asyncio.TaskGroup()
        self._pumps: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Links:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for pump in self._pumps:
            pump.cancel()
        try:
            await self._tasks.__aexit__(None, None, None)
        finally:
            for channel in self._channels.values():
                await channel.aclose()

    def post(self, pulls: Iterable[Pull]) -> None:
        """Starts the pulls. Never blocks."""
        for pull in pulls:
            channel = self._channels.get(pull.life)
            if channel is not None:
                channel.post([pull], self._target)
            elif pull.life in self._waiting:
                self._waiting[pull.life].append(pull)
            else:
                self._waiting[pull.life] = [pull]
                self._pumps.append(self._tasks.create_task(self._pump(pull.life)))

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

    async def _pump(self, life: Life) -> None:
        peer, _ = life
        try:
            channel = await self._transport.connect(peer, self._address_of(peer))
        except (TensorCastError, OSError) as error:
            fault = from_error(
                error
                if isinstance(error, TensorCastError)
                else Unavailable(f"Node {peer} cannot be reached: {error}.", node=peer)
            )
            for pull in self._waiting.pop(life):
                self._done.put_nowait(Broken(pull=pull, fault=fault))
            return
        self._channels[life] = channel
        channel.post(self._waiting.pop(life), self._target)
        while True:
            for completion in await channel.completions():
                self._done.put_nowait(completion)
