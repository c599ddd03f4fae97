"""A process's own picture of the cluster: the log, folded as it comes."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from types import TracebackType

from tensorcast.log.folding import Folding
from tensorcast.log.port import Log, Stored
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.errors import Timeout, Unavailable
from tensorcast.schema.ids import Seq

SUBSCRIPTION_EVENTS_MAX = 65_536
"""Most events that wait for one slow subscriber."""
TELL_S = 2.0

Sighting = tuple[ClusterView, Recorded]
_logger = logging.getLogger(__name__)


class Subscription:
    """Every event that the follower sees after `view`, each with the view that includes it.

    Iterate it once. A subscriber that falls `events_max` events behind gets Unavailable: it takes
    the follower's view and subscribes again. So a slow subscriber never holds the follower back.
    """

    def __init__(self, view: ClusterView, events_max: int, forget: Callable[[], None]) -> None:
        self.view = view
        self._events_max = events_max
        self._forget = forget
        self._waiting: deque[Sighting] = deque()
        self._ready = asyncio.Event()
        self._open = True
        self._lagged = False

    def offer(self, view: ClusterView, recorded: Recorded) -> None:
        """Hands one event over. Called by the follower; never blocks."""
        if len(self._waiting) >= self._events_max:
            self._lagged = True
            self._waiting.clear()
        elif not self._lagged:
            self._waiting.append((view, recorded))
        self._ready.set()

    def __aiter__(self) -> AsyncIterator[Sighting]:
        return self

    async def __anext__(self) -> Sighting:
        while not self._waiting:
            if self._lagged:
                raise Unavailable(
                    f"This reader fell more than {self._events_max} events behind.",
                    hint="Take the current view and subscribe again.",
                )
            if not self._open:
                raise StopAsyncIteration
            self._ready.clear()
            await self._ready.wait()
        return self._waiting.popleft()

    def close(self) -> None:
        """Ends the iteration after what waits already. Safe to repeat."""
        self._open = False
        self._forget()
        self._ready.set()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Follower:
    """Folds a log into `view`, from `view.at` on. `run` does the work; all else only looks."""

    def __init__(
        self, log: Log, *, view: ClusterView | None = None, folding: Folding | None = None
    ) -> None:
        self._folding = folding or Folding()
        self.view = ClusterView() if view is None else view
        self._log = log
        self._moved = asyncio.Event()
        self._subscriptions: list[Subscription] = []

    async def run(self) -> None:
        """Follows the log for ever. An event that cannot be taken is parked."""
        async for batch in self._log.read(after=self.view.at):
            for stored in batch:
                self._take(stored)
            self._moved.set()
            self._moved = asyncio.Event()
            await asyncio.sleep(0)  # a long history must not starve the rest of the process

    def _take(self, stored: Stored) -> None:
        before = self.view.skipped
        self.view, recorded = self._folding.take(self.view, stored)
        if self.view.skipped > before:
            _logger.error("event %d cannot be taken: it is parked", stored.seq)
            return
        if recorded is None:
            return
        for subscription in self._subscriptions:
            subscription.offer(self.view, recorded)

    async def wait_for(self, seq: Seq, timeout_s: float) -> ClusterView:
        """The view once it includes event `seq`. Raises Timeout."""
        try:
            return await self.wait_until(lambda view: view.at >= seq, timeout_s)
        except Timeout:
            raise Timeout(
                f"Event {seq} was not seen in {timeout_s:g} s; the last one is {self.view.at}.",
                hint="Is the NATS server well? `tcctl status` says.",
            ) from None

    async def catch_up(
        self, seq: Seq, silence_s: float, tell: Callable[[Seq], None] = lambda _: None
    ) -> ClusterView:
        """The view once it includes event `seq`, however long the way there is; `tell` hears every
        few seconds how far it is. Raises Timeout when no event came for `silence_s` seconds."""
        clock = asyncio.get_running_loop().time
        seen, seen_s = self.view.at, clock()
        while self.view.at < seq:
            left_s = seen_s + silence_s - clock()
            with suppress(Timeout):
                return await self.wait_for(seq, min(left_s, TELL_S))
            tell(self.view.at)
            if self.view.at > seen:
                seen, seen_s = self.view.at, clock()
            elif clock() - seen_s >= silence_s:
                return await self.wait_for(seq, 0)
        return self.view

    async def wait_until(
        self, predicate: Callable[[ClusterView], bool], timeout_s: float
    ) -> ClusterView:
        """The first view seen from now on that `predicate` accepts. Views between two batches of
        the log are not shown to it. Raises Timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                while not predicate(view := self.view):
                    await self._moved.wait()
                return view
        except TimeoutError:
            raise Timeout(f"What was waited for did not happen in {timeout_s:g} s.") from None

    def subscribe(self, *, events_max: int = SUBSCRIPTION_EVENTS_MAX) -> Subscription:
        """Every event from now on; its `view` is what came before. Close it after use."""

        def forget() -> None:
            if subscription in self._subscriptions:
                self._subscriptions.remove(subscription)

        subscription = Subscription(self.view, events_max, forget)
        self._subscriptions.append(subscription)
        return subscription
