"""Where the log says that policies were stopped, and for which event. Pure.

From the event that a policy could not answer until the stop is in the log no control plane asks it
anything; so nor does a backtest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from tensorcast.controlplane.core.policies.base import Policy
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.ids import Seq
from tensorcast.schema.policy_events import PolicyStopped


class _Silence(msgspec.Struct, frozen=True):
    """A policy is not asked from the event `first` on, until the one before `end`."""

    policy: str
    first: Seq
    end: Seq


class Stops:
    """The stops of policies in a part of a log."""

    def __init__(
        self, silences: Sequence[_Silence], found: Mapping[Seq, Sequence[Recorded]]
    ) -> None:
        self._silences = silences
        self._found = found

    def still(self, seq: Seq, policies: tuple[Policy, ...]) -> tuple[Policy, ...]:
        """Those of the policies that were asked about the event at this position."""
        silent = {one.policy for one in self._silences if one.first <= seq < one.end}
        if not silent:
            return policies
        return tuple(policy for policy in policies if policy.name not in silent)

    def at(self, seq: Seq) -> Sequence[Recorded]:
        """The stops of those that could not answer the event at this position."""
        return self._found.get(seq, ())


def find_stops(events: Sequence[Recorded]) -> Stops:
    """The stops that the events tell of. What a policy was stopped for before the first of them
    counts as that one."""
    places = {one.id: one.seq for one in events}
    silences: list[_Silence] = []
    found: dict[Seq, list[Recorded]] = {}
    for one in events:
        if not isinstance(one.event, PolicyStopped):
            continue
        # Without a cause it was stopped as it was made: it has answered nothing since.
        first = one.seq if one.cause is None else places.get(one.cause, events[0].seq)
        silences.append(_Silence(one.event.policy, first, one.seq))
        found.setdefault(first, []).append(one)
    return Stops(silences, found)
