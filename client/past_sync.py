"""The past for ordinary programs: the same as `past.py`, each call waits."""

from __future__ import annotations

from datetime import datetime
from typing import Self

from tensorcast.client.facade import Facade, waited
from tensorcast.client.past import AsyncHistory, AsyncPast
from tensorcast.client.portal import Portal
from tensorcast.schema.api import EventInfo
from tensorcast.schema.ids import Seq


class History:
    """Events in the order of the log: see `AsyncHistory`."""

    def __init__(self, portal: Portal, inner: AsyncHistory) -> None:
        self._portal = portal
        self._inner = inner
        self._page: list[EventInfo] = []
        self._cursor = inner.cursor

    @property
    def cursor(self) -> Seq:
        """The position of the last event that was given; `after=cursor` goes on there."""
        return self._cursor

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> EventInfo:
        if not self._page:
            self._page = [*reversed(self._portal.run(self._inner.next_page()))]
        if not self._page:
            raise StopIteration
        event = self._page.pop()
        self._cursor = event.seq
        return event


class Past(Facade[AsyncPast]):
    """The state as it was after one event: see `AsyncPast`."""

    @property
    def seq(self) -> Seq:
        """The event after which it was so."""
        return self._inner.seq

    @property
    def time(self) -> datetime | None:
        """The time that was asked for, or that of the event; None before the first one."""
        return self._inner.time

    artifacts = waited(AsyncPast.artifacts)
    artifact = waited(AsyncPast.artifact)
    tensors = waited(AsyncPast.tensors)
    keys = waited(AsyncPast.keys)
    key = waited(AsyncPast.key)
    nodes = waited(AsyncPast.nodes)
    node = waited(AsyncPast.node)
    operations = waited(AsyncPast.operations)
    operation = waited(AsyncPast.operation)
    engines = waited(AsyncPast.engines)
    engine = waited(AsyncPast.engine)
    weights_of = waited(AsyncPast.weights_of)
    lineage = waited(AsyncPast.lineage)
    state = waited(AsyncPast.state)
