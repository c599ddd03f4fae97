"""The guard: which commands a policy may give, and how many. Pure.

It counts what policies have written, as the log tells: so every scheduler counts the same, and one
that is started anew does too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

import msgspec

from tensorcast.schema import commands as c
from tensorcast.schema.commands import Command, StopPolicy
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.plan_commands import CancelPlan, SubmitPlan
from tensorcast.schema.policy_events import PolicyEnabled

ACTOR: Final = "controlplane:guard"
WINDOW_S: Final = 60
PREFIX: Final = "policy:"
RAISED, FLOOD, FORBIDDEN, SLOW = "raised", "flood", "forbidden", "slow"
DETAIL_CHARS_MAX: Final = 500
ALLOWED: Final = (
    c.IssueOperation
    | c.RetryOperation
    | c.RerouteOperation
    | c.CancelOperation
    | c.RequestReplicas
    | c.RequestVerification
    | c.PinArtifact
    | c.UnpinArtifact
    | c.RemoveArtifact
    | c.MoveKey
    | c.RemoveKey
    | c.CordonNode
    | c.UncordonNode
    | c.DrainNode
    | c.EmitSignal
    | SubmitPlan
    | CancelPlan
)
"""What policies may ask for; what movers, timers and engines report is theirs alone."""


class Overdue(BaseException):
    """A decision took too long. It goes through whatever catches an `Exception`."""


class NoAnswer(Exception):
    """What a policy answered are no commands."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Most commands of one policy: as the answer to one event, and events that it has written in
    `WINDOW_S` seconds of the log's time."""

    event_commands_max: int = 1000
    minute_commands_max: int = 6000


def gather(answer: object, commands_max: int) -> tuple[Command, ...]:
    """The commands that a policy answered, of too many one more than may be. Raises NoAnswer, and
    what the answer raises as it is read."""
    if not isinstance(answer, Iterable) or isinstance(answer, str | bytes | Mapping):
        raise NoAnswer(f"it answered {answer!r:.100}, where a tuple of commands is wanted")
    return tuple(islice(answer, commands_max + 1))


class Guard:
    """What each policy has written in the last minute. Modified by `note` alone."""

    def __init__(self) -> None:
        self._written: dict[str, deque[tuple[int, int]]] = {}
        self._sums: dict[str, int] = {}

    def note(self, recorded: Recorded) -> None:
        """Counts an event of the log. Call it for each, in order. A policy that is turned on begins
        a new minute: else one that was mended after a flood were stopped for its old answers."""
        if isinstance(recorded.event, PolicyEnabled):
            self._written.pop(recorded.event.policy, None)
            self._sums.pop(recorded.event.policy, None)
        if not recorded.actor.startswith(PREFIX):
            return
        policy = recorded.actor.removeprefix(PREFIX)
        second = int(recorded.at.timestamp())
        seconds = self._written.setdefault(policy, deque())
        if seconds and seconds[-1][0] >= second:
            seconds[-1] = (seconds[-1][0], seconds[-1][1] + 1)
        else:
            seconds.append((second, 1))
        self._sums[policy] = self._sums.get(policy, 0) + 1
        self._forget(policy, second)

    def _forget(self, policy: str, second: int) -> None:
        seconds = self._written[policy]
        while seconds and seconds[0][0] <= second - WINDOW_S:
            self._sums[policy] -= seconds.popleft()[1]

    def count(self, policy: str, recorded: Recorded) -> int:
        """Events that the policy wrote in the minute before an event."""
        if policy not in self._written:
            return 0
        self._forget(policy, int(recorded.at.timestamp()))
        return self._sums[policy]

    def judge(
        self, policy: str, limits: Limits, commands: Sequence[Command], recorded: Recorded
    ) -> StopPolicy | None:
        """The end of a policy that answers an event so; None when all is well."""
        if not commands:
            return None
        for command in commands:
            fault = _forbidden(policy, command)
            if fault:
                return stop(policy, FORBIDDEN, fault)
        if len(commands) > limits.event_commands_max:
            text = f"more than {limits.event_commands_max} commands for one event"
            return stop(policy, FLOOD, text)
        total = self.count(policy, recorded) + len(commands)
        if total > limits.minute_commands_max:
            text = f"{total} commands in a minute; {limits.minute_commands_max} are the limit"
            return stop(policy, FLOOD, text)
        return None


def _forbidden(policy: str, command: object) -> str:
    if not isinstance(command, ALLOWED):
        return f"a policy may not give {type(command).__name__}"
    if isinstance(command, c.IssueOperation) and command.policy != policy:
        return f"it issues work in the name of {command.policy!r}"
    return ""


def stop(policy: str, reason: str, detail: str) -> StopPolicy:
    """The command that ends a policy, in words that fit."""
    return StopPolicy(policy=policy, reason=reason, detail=detail[:DETAIL_CHARS_MAX])
