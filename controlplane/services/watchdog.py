"""A limit on how long one decision of a policy may take.

A thread of its own looks on. It counts its looks and reads no clock: a process that was held up as
a whole is not taken for one whose policy never returns.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, NamedTuple

import msgspec

from tensorcast.controlplane.core.catalog import BUILT_IN, Catalog, Kind
from tensorcast.controlplane.core.guard import Overdue, gather
from tensorcast.controlplane.core.policies.base import Parameters, Policy
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.commands import Command
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.errors import InvalidArgument

LOOKS_A_LIMIT: Final = 8


class Pending(NamedTuple):
    """A decision that is being taken: about an event, or (None) the making of the policy."""

    policy: str
    recorded: Recorded | None


Bark = Callable[[Pending, int, str], None]
"""Which decision has taken so many limits of time, and that in words."""


class Watchdog:
    """Looks at how long the present decision takes: once that is more than `limit_s` seconds it
    calls `bark`, and again after each further limit, in the thread that looks. Decisions are taken
    in one thread, that which makes the watchdog."""

    def __init__(self, limit_s: float, bark: Bark) -> None:
        self._limit_s = limit_s
        self._bark = bark
        self._thread_id = threading.get_ident()
        self._pending: Pending | None = None

    @property
    def pending(self) -> Pending | None:
        """The decision that is being taken now."""
        return self._pending

    def start(self) -> None:
        """Begins to look. The thread dies with the process."""
        threading.Thread(target=self._look, name="watchdog", daemon=True).start()

    def watch(self, catalog: Catalog, *, built_in: bool = True) -> Catalog:
        """The same policies, each decision watched; without `built_in` those of others alone."""
        kinds = [one for one in catalog.kinds.values() if built_in or one.origin != BUILT_IN]
        return catalog.replace(*map(self.watch_kind, kinds))

    def watch_kind(self, kind: Kind) -> Kind:
        """The same policy, each decision watched, and its making too."""

        def make(parameters: Parameters) -> Policy:
            try:
                with self.watching(Pending(kind.name, None)):
                    return _Watched(kind.make(parameters), self, kind.limits.event_commands_max)
            except Overdue as error:
                raise InvalidArgument(str(error), hint="Mend its `__init__`.") from error

        return msgspec.structs.replace(kind, make=make)

    @contextmanager
    def watching(self, pending: Pending) -> Iterator[None]:
        """A decision, from its beginning to its end."""
        self._pending = pending
        try:
            try:
                yield
            finally:
                self._pending = None
        finally:
            self._pending = None  # an interruption may have come just before it was said

    def _look(self) -> None:
        seen: Pending | None = None
        looks = 0
        while True:
            time.sleep(self._limit_s / LOOKS_A_LIMIT)
            pending = self._pending
            if pending is None or pending is not seen:
                seen, looks = pending, 0
                continue
            looks += 1
            if looks % LOOKS_A_LIMIT == 0:
                self._bark(pending, looks // LOOKS_A_LIMIT, self._describe(pending))

    def _describe(self, pending: Pending) -> str:
        place = _place(sys._current_frames().get(self._thread_id))
        policy, recorded = pending
        if recorded is None:
            return f"Policy {policy} was not made of its parameters in {self._limit_s:g} s{place}."
        return (
            f"Policy {policy} did not answer event {recorded.seq} ({recorded.type}) within"
            f" {self._limit_s:g} s{place}."
        )


class _Watched:
    """A policy whose decisions are watched, with all that it computes as its answer is read."""

    def __init__(self, policy: Policy, dog: Watchdog, commands_max: int) -> None:
        self._policy = policy
        self._dog = dog
        self._commands_max = commands_max

    @property
    def name(self) -> str:
        return self._policy.name

    def react(self, view: ClusterView, recorded: Recorded) -> tuple[Command, ...]:
        """As `Policy.react`."""
        with self._dog.watching(Pending(self._policy.name, recorded)):
            return gather(self._policy.react(view, recorded), self._commands_max)


def _place(frame: FrameType | None) -> str:
    """Where a thread is, in the code outside of this one that it is in."""
    while frame is not None and "tensorcast_policy_" not in str(frame.f_globals.get("__name__")):
        frame = frame.f_back
    if frame is None:
        return ""
    return f": it is at line {frame.f_lineno} of {frame.f_code.co_filename.rsplit('/', 1)[-1]}"
