"""What engines answered to the calls of plans in a recorded log, and after how long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from tensorcast.schema.envelope import Recorded
from tensorcast.schema.events import SignalEmitted
from tensorcast.schema.ids import EventId

CALLS: Final = "engine.call."
ANSWERS: Final = "engine.answer."


class Answers(msgspec.Struct, frozen=True):
    """The answers to each call, with the seconds after it; `ids` are those of their events."""

    by_call: Mapping[str, list[tuple[float, Recorded]]]
    ids: frozenset[EventId]

    def to(self, recorded: Recorded) -> Iterator[tuple[float, Recorded]]:
        """What was answered to an event, if it is a call."""
        call = _call(recorded, CALLS)
        if call is not None:
            yield from self.by_call.get(call, ())


def find_answers(events: Iterable[Recorded]) -> Answers:
    """The answers in a log to calls that are in it too."""
    calls: dict[str, Recorded] = {}
    found: dict[str, list[tuple[float, Recorded]]] = {}
    for recorded in events:
        call = _call(recorded, CALLS)
        if call is not None:
            calls.setdefault(call, recorded)
        answered = _call(recorded, ANSWERS)
        if answered is not None and answered in calls:
            delay_s = (recorded.at - calls[answered].at).total_seconds()
            found.setdefault(answered, []).append((max(0.0, delay_s), recorded))
    ids = frozenset(one.id for many in found.values() for _, one in many)
    return Answers(found, ids)


def _call(recorded: Recorded, prefix: str) -> str | None:
    """The call that a signal below a topic is about."""
    event = recorded.event
    if not isinstance(event, SignalEmitted) or not event.topic.startswith(prefix):
        return None
    call = event.data.get("call")
    return call if isinstance(call, str) else None
