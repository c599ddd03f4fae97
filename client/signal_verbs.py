"""What clients say and ask of signals; part of `ControlPlane`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from tensorcast.client.identity import new_event_id
from tensorcast.schema.api_signals import (
    TOPICS_SHOWN_MAX,
    Emit,
    Emitted,
    TopicInfo,
    TopicsQuery,
)
from tensorcast.schema.ids import EventId
from tensorcast.schema.signals import EVERYTHING, encode_data, parse_pattern, parse_topic

if TYPE_CHECKING:
    from tensorcast.client.position import Position

T = TypeVar("T")


class _Asks(Protocol):
    @property
    def actor(self) -> str: ...

    @property
    def position(self) -> Position: ...

    async def ask(
        self, verb: str, request: msgspec.Struct, answer: type[T], *, timeout: float | None = None
    ) -> T: ...


class SignalVerbs:
    """Signals are emitted by the control plane; readers (`signals.py`) read them from the log."""

    async def emit(
        self: _Asks,
        topic: str,
        data: Mapping[str, object] | None = None,
        *,
        id: EventId | None = None,
    ) -> Emitted:
        """Emits a signal on a topic; it is in the log when this returns. `data` is a mapping that
        JSON can hold, of 64 KiB at most; the same `id` emits once within two minutes. Raises
        InvalidArgument, OutOfCapacity when there are too many topics, Unavailable, Timeout; after
        these two it may have been emitted all the same."""
        encoded = encode_data({} if data is None else data)
        request = Emit(
            topic=parse_topic(topic),
            data=msgspec.json.decode(encoded, type=dict[str, object]),
            actor=self.actor,
            id=new_event_id() if id is None else id,
        )
        done = await self.ask("signal.emit", request, Emitted)
        self.position.advance(done.seq)
        return done

    async def topics(
        self: _Asks,
        pattern: str = EVERYTHING,
        *,
        limit: int = TOPICS_SHOWN_MAX,
        with_data: bool = True,
    ) -> tuple[TopicInfo, ...]:
        """The topics that `pattern` chooses, the last used first, each with its last signal."""
        query = TopicsQuery(
            pattern=parse_pattern(pattern),
            limit=limit,
            with_data=with_data,
            after=self.position.seq,
        )
        return await self.ask("signal.topics", query, tuple[TopicInfo, ...])
