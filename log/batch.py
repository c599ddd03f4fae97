"""What every log checks before it appends: the pure half of `append`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from tensorcast.log.port import APPEND_EVENTS_MAX
from tensorcast.schema.codec import EVENT_BYTES_MAX, encode
from tensorcast.schema.envelope import Draft
from tensorcast.schema.errors import Conflict, InvalidArgument
from tensorcast.schema.ids import EventId, Seq
from tensorcast.schema.subjects import subject_of


class Entry(msgspec.Struct, frozen=True):
    """One event ready to be appended. `expected` is None where nothing is to be checked: a later
    event of the same aggregate in the same append has nothing left to check."""

    id: EventId
    subject: str
    payload: bytes
    at: datetime
    expected: Seq | None


def prepare(
    cluster: str, drafts: Sequence[Draft], *, bytes_max: int = EVENT_BYTES_MAX
) -> tuple[Entry, ...]:
    """The entries of one append. Raises InvalidArgument for an append that no log could take:
    too many events, an event above `bytes_max`, an id twice, two expectations of one aggregate."""
    if len(drafts) > APPEND_EVENTS_MAX:
        raise InvalidArgument(
            f"An append of {len(drafts)} events is too large.",
            hint=f"Append at most {APPEND_EVENTS_MAX} at once.",
        )
    if len({draft.id for draft in drafts}) != len(drafts):
        raise InvalidArgument("An append names one event id twice.", hint="Give each its own.")
    seen: dict[str, Seq | None] = {}
    return tuple(_entry(cluster, draft, seen, bytes_max) for draft in drafts)


def raw_entry(subject: str, payload: bytes) -> Entry:
    """An event that is appended as it was published somewhere else. It has no id: two events of an
    old log may have the same one."""
    return Entry(EventId(""), subject, payload, datetime.min, None)


def _entry(cluster: str, draft: Draft, seen: dict[str, Seq | None], bytes_max: int) -> Entry:
    subject = subject_of(cluster, draft.event)
    payload = encode(draft)
    if len(payload) > bytes_max:
        raise InvalidArgument(
            f"Event {type(draft.event).__name__} takes {len(payload)} bytes; the log takes"
            f" {bytes_max}.",
            hint="Split the artifact, or raise max_payload of the NATS server.",
        )
    if subject in seen:
        _check_agreement(subject, seen[subject], draft.expected)
        return Entry(draft.id, subject, payload, draft.at, None)
    seen[subject] = draft.expected
    return Entry(draft.id, subject, payload, draft.at, draft.expected)


def _check_agreement(subject: str, first: Seq | None, later: Seq | None) -> None:
    if later is not None and later != first:
        raise InvalidArgument(
            f"One append expects {subject} at {first} and at {later}.",
            hint="State the position before the append, once or in each event.",
        )


def stale(subject: str, expected: Seq | None) -> Conflict:
    """The refusal of an append whose writer did not know the last event of an aggregate."""
    return Conflict(
        f"{subject} has changed since position {expected}.",
        hint="Read it again and decide again.",
    )
