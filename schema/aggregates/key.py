"""A key: a human name that points to an artifact, moved by compare-and-set."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

import msgspec

from tensorcast.schema.aggregates.machine import next_status
from tensorcast.schema.commands import KeyCommand, MoveKey
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.errors import Conflict, NotFound
from tensorcast.schema.events import Event, KeyEvent, KeyMoved, KeyRemoved
from tensorcast.schema.ids import ArtifactId, Key, Seq, parse_key


class KeyStatus(StrEnum):
    SET = "set"
    REMOVED = "removed"


TRANSITIONS: Mapping[tuple[KeyStatus | None, type[Event]], KeyStatus] = {
    (None, KeyMoved): KeyStatus.SET,
    (KeyStatus.SET, KeyMoved): KeyStatus.SET,
    (KeyStatus.SET, KeyRemoved): KeyStatus.REMOVED,
    (KeyStatus.REMOVED, KeyMoved): KeyStatus.SET,
}


class KeyState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`moves` counts the moves and removals from 1; it is what users see as the version."""

    key: Key
    status: KeyStatus
    artifact: ArtifactId
    moves: int
    moved_at: datetime
    version: Seq = Seq(0)


def decide(state: KeyState | None, command: KeyCommand) -> tuple[KeyEvent, ...]:
    """The events that the command leads to. Raises Conflict, NotFound or InvalidArgument."""
    current = state.artifact if state and state.status is KeyStatus.SET else None
    moves = state.moves if state else 0
    if isinstance(command, MoveKey):
        parse_key(command.key)
        if current == command.artifact:
            return ()
        _check_expected(command.key, current, command.expect)
        return (
            KeyMoved(
                key=command.key, artifact=command.artifact, previous=current, version=moves + 1
            ),
        )
    if current is None:
        raise NotFound(
            f"There is no key {command.key!r}.", hint="`tcctl key ls` shows what there is."
        )
    if command.expect is not None:
        _check_expected(command.key, current, command.expect)
    return (KeyRemoved(key=command.key, previous=current, version=moves + 1),)


def _check_expected(key: Key, current: ArtifactId | None, expect: ArtifactId | None) -> None:
    if current == expect:
        return
    if current is None:
        raise Conflict(
            f"Key {key!r} does not exist, so it cannot be expected to point to {expect}.",
            hint="Leave the expectation out to create it.",
            artifact=expect,
        )
    wanted = f"not to {expect}" if expect else "but a new key was asked for"
    raise Conflict(
        f"Key {key!r} points to {current}, {wanted}.",
        hint=f"To move it, expect what it points to: `--expect {current}` (in Python expect=).",
        artifact=current,
    )


def evolve(state: KeyState | None, recorded: Recorded, event: KeyEvent) -> KeyState:
    """The state after `event`. Raises Rejected when the event cannot follow."""
    status = next_status(TRANSITIONS, state.status if state else None, event, f"key {event.key!r}")
    artifact = event.artifact if isinstance(event, KeyMoved) else event.previous
    return KeyState(
        key=event.key,
        status=status,
        artifact=artifact,
        moves=event.version,
        moved_at=recorded.at,
        version=recorded.seq,
    )
