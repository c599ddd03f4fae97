"""Readers of signals for ordinary programs: the same as `signals.py`, each call waits."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol, Self

from tensorcast.client.portal import Portal, documented_as
from tensorcast.client.signal_calls import AGAIN_S, AsyncSignalCalls
from tensorcast.client.signals import ACK_S, NEW, AsyncSignal, AsyncSignals, Start
from tensorcast.schema.ids import EventId, Seq
from tensorcast.schema.signals import Signal as Said
from tensorcast.schema.signals import Topic

if TYPE_CHECKING:
    from tensorcast.client.session import AsyncClient

LOOK_S: Final = 0.25
_logger = logging.getLogger(__name__)


class Signal:
    """A signal that a reader was given. A durable reader acknowledges it, or gets it again."""

    def __init__(self, portal: Portal, inner: AsyncSignal) -> None:
        self._portal = portal
        self._inner = inner

    @property
    def signal(self) -> Said:
        """All of it, as a value."""
        return self._inner.signal

    @property
    def seq(self) -> Seq:
        """Its position in the log."""
        return self._inner.seq

    @property
    def topic(self) -> Topic:
        return self._inner.topic

    @property
    def data(self) -> dict[str, object]:
        """What it says."""
        return self._inner.data

    @property
    def at(self) -> datetime:
        return self._inner.at

    @property
    def actor(self) -> str:
        """Who emitted it."""
        return self._inner.actor

    @property
    def id(self) -> EventId:
        """The id of its event."""
        return self._inner.id

    @property
    def delivery(self) -> int:
        """How often it was given to this reader, this time included."""
        return self._inner.delivery

    def ack(self) -> None:
        """It is done with: a durable reader does not get it again. If that word gets lost, it comes
        again all the same. Safe to repeat; nothing to do for a reader that is not durable."""
        self._portal.run(self._inner.ack())

    def retry(self, *, after: float = 0.0) -> None:
        """Gives it back: it comes again, `after` so many seconds; after the last of its tries
        (`dead_after`) it is buried."""
        self._portal.run(self._inner.retry(after=after))

    def extend(self) -> None:
        """Work on it goes on: the time to acknowledge it begins anew."""
        self._portal.run(self._inner.extend())

    def bury(self, reason: str) -> None:
        """Gives it up: it is said on `dead.<reader>`, with the reason, and comes no more."""
        self._portal.run(self._inner.bury(reason))

    def __repr__(self) -> str:
        return repr(self._inner).replace("Async", "", 1)


Callback = Callable[[Signal], None]


class Signals:
    """Signals as they come: see `AsyncSignals`. `for` waits for ever, `next` for a time."""

    def __init__(self, portal: Portal, inner: AsyncSignals) -> None:
        self._portal = portal
        self._inner = inner

    def next(self, timeout: float | None = None) -> Signal | None:
        """The next signal; None when none came within `timeout` seconds (None: for ever). It waits
        through restarts of the servers. Raises NotFound when the durable name was forgotten."""
        found = self._portal.run(self._inner.next(timeout))
        return None if found is None else Signal(self._portal, found)

    def close(self) -> None:
        """Ends it; where a durable reader stands is kept. Safe to repeat."""
        self._portal.run(self._inner.aclose())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Signal:
        return Signal(self._portal, self._portal.run(self._inner.__anext__()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Listener:
    """Signals handed to a function in a thread of its own: see `AsyncListener`."""

    def __init__(self, signals: Signals, callback: Callback) -> None:
        self._signals = signals
        self._callback = callback
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="signals", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends it, after the signal that it is at. Safe to repeat."""
        self._ends.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _listen(self) -> None:
        with self._signals:
            while not self._ends.is_set():
                signal = self._signals.next(LOOK_S)
                if signal is None:
                    continue
                try:
                    self._callback(signal)
                except Exception:  # anybody's code
                    _logger.exception("signal %d on %s was not taken", signal.seq, signal.topic)
                    signal.retry(after=AGAIN_S)
                else:
                    signal.ack()


class _Client(Protocol):
    @property
    def _portal(self) -> Portal: ...

    @property
    def _inner(self) -> AsyncClient: ...


class SignalCalls:
    """What a waiting client offers for signals."""

    @documented_as(AsyncSignalCalls.signals)
    def signals(
        self: _Client,
        pattern: str,
        *,
        durable: str | None = None,
        start: Start = NEW,
        ack_within: float = ACK_S,
        dead_after: int | None = None,
    ) -> Signals:
        """As `AsyncClient.signals`; it has taken its place when this returns. Raises Conflict when
        the durable name reads another pattern, Unavailable."""
        inner = self._inner.signals(
            pattern,
            durable=durable,
            start=start,
            ack_within=ack_within,
            dead_after=dead_after,
        )
        self._portal.run(inner.open())
        return Signals(self._portal, inner)

    @documented_as(AsyncSignalCalls.listener)
    def listener(
        self: _Client,
        pattern: str,
        callback: Callback,
        *,
        durable: str | None = None,
        start: Start = NEW,
        ack_within: float = ACK_S,
        dead_after: int | None = None,
    ) -> Listener:
        """As `AsyncClient.listener`; `callback` is called in a thread of its own, from now until
        `close` or the end of `with`."""
        inner = self._inner.signals(
            pattern,
            durable=durable,
            start=start,
            ack_within=ack_within,
            dead_after=dead_after,
        )
        self._portal.run(inner.open())
        return Listener(Signals(self._portal, inner), callback)
