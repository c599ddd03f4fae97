"""A limit on how long one decision of a policy may take. What a policy never returns from cannot be
stopped within its process: so the process says which it was, and ends."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

import msgspec

from tensorcast.controlplane.core.catalog import Catalog, Kind
from tensorcast.controlplane.core.policies.base import Parameters, Policy
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.commands import Command
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.errors import Timeout

LOOKS_A_LIMIT: Final = 8


class Watchdog:
    """Looks, from a thread of its own, at how long the present decision has taken; `bark` is called
    with what to say once that is more than `limit_s` seconds, and ends the process."""

    def __init__(self, limit_s: float, bark: Callable[[Timeout], None]) -> None:
        self._limit_s = limit_s
        self._bark = bark
        self._thread_id = threading.get_ident()
        self._since: tuple[str, Recorded, float] | None = None

    def start(self) -> None:
        """Begins to look. The thread dies with the process."""
        threading.Thread(target=self._look, name="watchdog", daemon=True).start()

    def watch(self, catalog: Catalog) -> Catalog:
        """The same policies, each decision watched."""
        return catalog.replace(*map(self.watch_kind, catalog.kinds.values()))

    def watch_kind(self, kind: Kind) -> Kind:
        """The same policy, each decision watched."""

        def make(parameters: Parameters) -> Policy:
            return _Watched(kind.make(parameters), self)

        return msgspec.structs.replace(kind, make=make)

    def react(self, policy: Policy, view: ClusterView, recorded: Recorded) -> tuple[Command, ...]:
        """The answer of a policy, while the dog looks on. Raises what the policy raises."""
        self._since = (policy.name, recorded, time.monotonic())
        try:
            return tuple(policy.react(view, recorded))
        finally:
            self._since = None

    def _look(self) -> None:
        while True:
            time.sleep(self._limit_s / LOOKS_A_LIMIT)
            since = self._since
            if since is not None and time.monotonic() - since[2] > self._limit_s:
                self._bark(self._describe(since[0], since[1]))
                return

    def _describe(self, policy: str, recorded: Recorded) -> Timeout:
        place = _place(sys._current_frames().get(self._thread_id))
        return Timeout(
            f"Policy {policy} did not answer event {recorded.seq} ({recorded.type}) within"
            f" {self._limit_s:g} s{place}.",
            hint="A policy answers at once and never waits; --decision-timeout gives it longer.",
        )


class _Watched:
    """A policy whose decisions are watched."""

    def __init__(self, policy: Policy, dog: Watchdog) -> None:
        self._policy = policy
        self._dog = dog

    @property
    def name(self) -> str:
        return self._policy.name

    def react(self, view: ClusterView, recorded: Recorded) -> tuple[Command, ...]:
        """As `Policy.react`."""
        return self._dog.react(self._policy, view, recorded)


def _place(frame: FrameType | None) -> str:
    """Where a thread is, in the code outside of this one that it is in."""
    while frame is not None and "tensorcast_policy_" not in str(frame.f_globals.get("__name__")):
        frame = frame.f_back
    if frame is None:
        return ""
    return f": it is at line {frame.f_lineno} of {frame.f_code.co_filename.rsplit('/', 1)[-1]}"
