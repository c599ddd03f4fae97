"""What applications say on topics and hear from them; part of `AsyncClient`."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableSet
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol, Self

from tensorcast.client.identity import new_event_id
from tensorcast.client.naming import check_timeout
from tensorcast.client.patience import AWAY_S, outlast
from tensorcast.client.signals import (
    ACK_S,
    NEW,
    AsyncSignal,
    AsyncSignals,
    Reader,
    Start,
    forget_reader,
    list_readers,
)
from tensorcast.schema.api_signals import Emitted
from tensorcast.schema.errors import InvalidArgument, Timeout
from tensorcast.schema.shapes import Shape, check_shape
from tensorcast.schema.signals import encode_data, parse_pattern, parse_topic

if TYPE_CHECKING:
    from tensorcast.client.api import ControlPlane
    from tensorcast.client.calls import AsyncCalls
    from tensorcast.client.context import Context

AGAIN_S: Final = 1.0
TOPICS: Final = "topics"
"""The policy whose parameters are the shapes of topics."""
Callback = Callable[[AsyncSignal], Awaitable[None] | None]
_logger = logging.getLogger(__name__)


class _Client(Protocol):
    @property
    def api(self) -> ControlPlane: ...

    @property
    def context(self) -> Context: ...

    @property
    def readers(self) -> MutableSet[AsyncSignals | AsyncCalls]: ...

    async def emit(
        self, topic: str, data: Mapping[str, object] | None = None, *, timeout: float = AWAY_S
    ) -> Emitted: ...

    def signals(
        self,
        pattern: str,
        *,
        durable: str | None = None,
        start: Start = NEW,
        ack_within: float = ACK_S,
        dead_after: int | None = None,
    ) -> AsyncSignals: ...


class AsyncListener:
    """Signals handed to a function as they come, until it is closed. A signal is acknowledged once
    the function has returned; when it raised, a durable reader gets the signal again."""

    def __init__(self, signals: AsyncSignals, callback: Callback) -> None:
        self._signals = signals
        self._callback = callback
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> Self:
        """Takes its place, and begins. Raises as `AsyncSignals.open`."""
        await self._signals.open()
        self._task = asyncio.get_running_loop().create_task(self._listen())
        return self

    async def aclose(self) -> None:
        """Ends it, after the signal that it is at. Safe to repeat."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await self._signals.aclose()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def _listen(self) -> None:
        async for signal in self._signals:
            try:
                answer = self._callback(signal)
                if inspect.isawaitable(answer):
                    await answer
            except asyncio.CancelledError:  # closed on the way: it was not taken
                await signal.retry()
                raise
            except Exception:  # anybody's code
                _logger.exception("signal %d on %s was not taken", signal.seq, signal.topic)
                await signal.retry(after=AGAIN_S)
            else:
                await signal.ack()


class AsyncSignalCalls:
    """Signals: emit them, read them, wait for each other with them."""

    async def emit(
        self: _Client,
        topic: str,
        data: Mapping[str, object] | None = None,
        *,
        timeout: float = AWAY_S,
    ) -> Emitted:
        """Emits a signal on a topic (`weights.published`); it is in the log when this returns. It
        waits `timeout` seconds for a control plane that is away, and emits once all the same.

        `data` is a mapping of what JSON has, of 64 KiB at most. Raises InvalidArgument, also for
        data that has not the shape of its topic, OutOfCapacity when there are too many topics,
        Unavailable, Timeout; after these two it may have been emitted all the same.
        """
        check_timeout(timeout)
        encode_data({} if data is None else data)
        id = new_event_id()
        return await outlast(self.api, lambda: self.api.emit(topic, data, id=id), timeout)

    def signals(
        self: _Client,
        pattern: str,
        *,
        durable: str | None = None,
        start: Start = NEW,
        ack_within: float = ACK_S,
        dead_after: int | None = None,
    ) -> AsyncSignals:
        """Reads the signals whose topics a pattern chooses (`weights.*`, `engine.>`), in the order
        of the log: `async for signal in client.signals(...)`. It takes its place at the first of
        `open`, `async with` and the loop.

        With a `durable` name the cluster keeps which signals were acknowledged (`signal.ack()`):
        each is given until it is, at least once, also after a crash of anybody. What is not
        acknowledged `ack_within` seconds is given again; what was given `dead_after` times in vain
        is said on `dead.<name>` instead, and given no more (None: it is given for ever). `start` is
        'new', 'first', 'last' (of each topic), a position or a time; for a durable name it counts
        only when that is new. Raises InvalidArgument.
        """
        reader = AsyncSignals(
            self.api,
            pattern,
            durable=durable,
            start=start,
            ack_within=ack_within,
            dead_after=dead_after,
        )
        self.readers.add(reader)
        return reader

    def listener(
        self: _Client,
        pattern: str,
        callback: Callback,
        *,
        durable: str | None = None,
        start: Start = NEW,
        ack_within: float = ACK_S,
        dead_after: int | None = None,
    ) -> AsyncListener:
        """Has `callback` (a function, or a coroutine function) called with each signal, one after
        the other, during `async with`. Each is acknowledged once it has returned; when it raises,
        that is logged, and a durable reader gets the signal again. Arguments as `signals`."""
        signals = self.signals(
            pattern,
            durable=durable,
            start=start,
            ack_within=ack_within,
            dead_after=dead_after,
        )
        return AsyncListener(signals, callback)

    async def signal_readers(self: _Client) -> tuple[Reader, ...]:
        """The durable readers of signals, and how far they are."""
        return await list_readers(await self.api.connect(), self.context.cluster)

    async def forget_reader(self: _Client, durable: str) -> None:
        """Forgets a durable reader of signals and where it stands. Raises NotFound."""
        await forget_reader(await self.api.connect(), self.context.cluster, durable)

    # ---- waiting for each other ----------------------------------------------------------------

    async def acknowledge(
        self: _Client, topic: str, version: str, member: str, *, timeout: float = AWAY_S
    ) -> Emitted:
        """Says that `member` has done with `version` what the topic is about; `barrier` waits for
        that. Safe to repeat. Waits and raises as `emit`."""
        return await self.emit(topic, {"version": version, "member": member}, timeout=timeout)

    async def barrier(
        self: _Client,
        topic: str,
        version: str,
        *,
        members: Collection[str] = (),
        count: int | None = None,
        timeout: float | None = None,
        start: Start = "first",
    ) -> tuple[str, ...]:
        """Waits until all `members`, or `count` different ones (of the `members`, if there are
        any), have acknowledged a version on the topic, before this call or after it; returns those
        that have, in that order. `start` is where to look from, as for `signals`. Raises Timeout,
        naming who is missing, InvalidArgument."""
        if isinstance(members, str):
            raise InvalidArgument(
                f"{members!r} are no members of a barrier.", hint=f"Give a list: [{members!r}]."
            )
        wanted = len(set(members)) if count is None else count
        if wanted < 1:
            raise InvalidArgument("A barrier waits for nobody.", hint="Give members or a count.")
        if members and wanted > len(set(members)):
            raise InvalidArgument(
                f"{wanted} of {len(set(members))} members can never acknowledge.",
                hint="Give a count of at most as many, or no members.",
            )
        parse_topic(topic)
        seen: dict[str, None] = {}
        try:
            async with asyncio.timeout(timeout), self.signals(topic, start=start) as signals:
                async for signal in signals:
                    member = signal.data.get("member")
                    if signal.data.get("version") != version or not isinstance(member, str):
                        continue
                    if not members or member in members:
                        seen[member] = None
                    if len(seen) >= wanted:
                        break
        except TimeoutError:
            missing = sorted(set(members) - seen.keys())
            whom = ", ".join(missing) if missing else f"{wanted - len(seen)} more"
            raise Timeout(
                f"{len(seen)} of {wanted} acknowledged {version!r} on {topic} in {timeout} s.",
                hint=f"Missing: {whom}.",
            ) from None
        return tuple(seen)

    # ---- shapes --------------------------------------------------------------------------------

    async def topic_shapes(self: _Client) -> dict[str, Shape]:
        """The shapes that were given to topics, by pattern."""
        info = await self.api.policy(TOPICS)
        value = next((one.value for one in info.parameters if one.name == "shapes"), None)
        return dict(value) if isinstance(value, dict) else {}

    async def define_topic(self: _Client, pattern: str, shape: Shape | None) -> None:
        """From now on a signal on these topics is refused unless its data has this shape (a JSON
        Schema of the words in docs/signals.md; None: any data again). Raises InvalidArgument."""
        parse_pattern(pattern)
        if shape is not None:
            check_shape(shape)
        info = await self.api.policy(TOPICS)
        value = next((one.value for one in info.parameters if one.name == "shapes"), None)
        shapes = dict(value) if isinstance(value, dict) else {}
        shapes.pop(pattern, None)
        if shape is not None:
            shapes[pattern] = dict(shape)
        await self.api.set_policy(TOPICS, {"shapes": shapes})
