"""A topic of signals: how many were emitted on it, and the last one. Any writer may emit."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

import msgspec

from tensorcast.schema.aggregates.machine import next_status
from tensorcast.schema.commands import EmitSignal
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.events import Event, SignalEmitted
from tensorcast.schema.ids import Seq
from tensorcast.schema.signals import Topic, encode_data, parse_topic


class SignalStatus(StrEnum):
    OPEN = "open"


TRANSITIONS: Mapping[tuple[SignalStatus | None, type[Event]], SignalStatus] = {
    (None, SignalEmitted): SignalStatus.OPEN,
    (SignalStatus.OPEN, SignalEmitted): SignalStatus.OPEN,
}


class SignalTopic(msgspec.Struct, frozen=True, kw_only=True):
    """What was said on a topic in all. The last signal is the event at `version`; its data stays
    there: whoever folds the log does not keep it."""

    id: Topic
    status: SignalStatus
    emitted: int
    actor: str
    first_at: datetime
    last_at: datetime
    version: Seq = Seq(0)


def decide(state: SignalTopic | None, command: EmitSignal) -> tuple[SignalEmitted, ...]:
    """The one event of the command, whatever was emitted before. Raises InvalidArgument for a topic
    or data that no signal can have."""
    encode_data(command.data)
    return (SignalEmitted(topic=parse_topic(command.topic), data=command.data),)


def evolve(state: SignalTopic | None, recorded: Recorded, event: SignalEmitted) -> SignalTopic:
    """The topic after one more signal."""
    status = next_status(
        TRANSITIONS, state.status if state else None, event, f"topic {event.topic}"
    )
    return SignalTopic(
        id=event.topic,
        status=status,
        emitted=(state.emitted if state else 0) + 1,
        actor=recorded.actor,
        first_at=state.first_at if state else recorded.at,
        last_at=recorded.at,
        version=recorded.seq,
    )
