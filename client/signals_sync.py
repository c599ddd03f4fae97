"""Readers of signals for ordinary programs: the same as `signals.py`, each call waits."""

from __future__ import annotations

from datetime import datetime
from types import TracebackType
from typing import Self

from tensorcast.client.portal import Portal
from tensorcast.client.signals import AsyncSignal, AsyncSignals
from tensorcast.schema.ids import EventId, Seq
from tensorcast.schema.signals import Signal as Said
from tensorcast.schema.signals import Topic


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
        """Gives it back: it comes again, `after` so many seconds."""
        self._portal.run(self._inner.retry(after=after))

    def extend(self) -> None:
        """Work on it goes on: the time to acknowledge it begins anew."""
        self._portal.run(self._inner.extend())

    def __repr__(self) -> str:
        return repr(self._inner).replace("Async", "", 1)


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
