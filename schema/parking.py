"""Things that stand still because an event of theirs could not be taken.

The log keeps every event. A fold that meets one that it cannot take (its bytes are none, it cannot
follow on what was before, this release stumbles over it) parks it: the thing that it is about stays
as it was, its later events are parked as well, in order, for they would be applied on a hole, and
all else goes on. A release that can take the event takes all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from tensorcast.schema.errors import TensorCastError
from tensorcast.schema.events import AggregateKind
from tensorcast.schema.ids import Seq
from tensorcast.schema.subjects import parse_log_subject

REASON_CHARS_MAX: Final = 300
NO_EVENT: Final = "its bytes are no event"
FAULTS: Final = (
    TensorCastError,
    msgspec.MsgspecError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What a fold may stumble over: anything but what the process itself ends with."""
_UNKNOWN: Final = "unknown"


class Parked(msgspec.Struct, frozen=True, kw_only=True):
    """What is parked of one thing, `id` being its kind and its own id: `events` events from `first`
    to `version`. `reason` says what was wrong with the first."""

    id: str
    version: Seq
    first: Seq
    events: int
    reason: str


def parked_id(kind: str, aggregate_id: str) -> str:
    """The id under which a thing is parked."""
    return f"{kind}/{aggregate_id}"


def split_id(name: str) -> tuple[str, str]:
    """The kind and the own id of what is parked."""
    kind, _, aggregate_id = name.partition("/")
    return kind, aggregate_id


def subject_id(subject: str) -> str:
    """The id under which an event is parked that says nothing itself."""
    try:
        return parked_id(*parse_log_subject(subject))
    except ValueError:
        return parked_id(_UNKNOWN, subject)


def park_one(parked: Mapping[str, Parked], name: str, seq: Seq, reason: str) -> Parked:
    """What is parked of a thing with one event more."""
    before = parked.get(name)
    if before is not None:
        return msgspec.structs.replace(before, version=seq, events=before.events + 1)
    reason = reason.replace("\0", "?")[:REASON_CHARS_MAX]
    return Parked(id=name, version=seq, first=seq, events=1, reason=reason)


def is_blocked(parked: Mapping[str, Parked], kind: str, aggregate_id: str) -> bool:
    """Whether later events of a thing have to wait. Signals never do: none follows on another."""
    return (
        bool(parked)
        and kind != AggregateKind.SIGNAL.value
        and parked_id(kind, aggregate_id) in parked
    )


def explain(error: Exception) -> str:
    """What a fold stumbled over, in one sentence."""
    said = str(error)
    return said if isinstance(error, TensorCastError) else f"{type(error).__name__}: {said}"
