"""Questions to the node which blocks there are, asked ahead in a thread, so that the scheduler
never waits for a node: it looks whether the answer has come."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from typing import Final

THREADS: Final = 2
GLANCE_S: Final = 0.004
"""So long an answer is waited for in the scheduler: it comes within a fraction of it, and without
it the request would wait for a whole step of the others."""
ANSWER_S_MAX: Final = 0.3
"""After so long without an answer the request goes on without the node."""
PROMISE_S: Final = 1.0
"""So long a request waits for blocks that a prefill engine said to be under way."""
AGAIN_S: Final = 0.01

FindStates = Callable[[list[bytes], "str | None"], "bytes | None"]
"""Where the blocks of these keys are (`Link.find_states`)."""


class Lookup:
    """One question: where are these blocks? `states` is None as long as nothing is known; what
    could not be found out counts as nowhere."""

    def __init__(
        self, keys: list[bytes], space: str, promised: int, node: str | None, until_s: float
    ) -> None:
        self.keys = keys
        self.node = node
        self.space = space
        self.promised = promised
        self.until_s = until_s
        self.future: Future[bytes | None] | None = None
        self.states: bytes | None = None


class Lookups:
    """Asks by `find_states`, which may take long and answers None when the node is away."""

    def __init__(
        self,
        find_states: FindStates,
        absent: int,
        *,
        answer_s: float = ANSWER_S_MAX,
        promise_s: float = PROMISE_S,
    ) -> None:
        self._answer_s, self._promise_s = answer_s, promise_s
        self._find = find_states
        self._absent = absent
        self._pool = ThreadPoolExecutor(THREADS, "tensorcast-lookup")

    def begin(
        self, keys: list[bytes], space: str, promised: int = 0, node: str | None = None
    ) -> Lookup:
        """Asks. `promised`: so many of the keys, from the first on, `node` is said to have or to
        have soon: they are asked for again for a moment when they are not there."""
        patience_s = self._promise_s if promised else self._answer_s
        lookup = Lookup(keys, space, promised, node, time.monotonic() + patience_s)
        self._ask(lookup)
        return lookup

    def look(self, lookup: Lookup) -> bytes | None:
        """The states, as soon as they are known; after the lookup's time nothing is there."""
        if lookup.states is not None or lookup.future is None:
            return lookup.states
        try:
            error = lookup.future.exception(GLANCE_S)
            found = lookup.future.result() if error is None else None
        except NotYet:
            if time.monotonic() < lookup.until_s:
                return None
            found = None
        if found is None:
            found = bytes([self._absent]) * len(lookup.keys)
        elif self._absent in found[: lookup.promised] and time.monotonic() < lookup.until_s:
            self._ask(lookup, AGAIN_S)
            return None
        lookup.states = found
        return found

    def peek(self, lookup: Lookup) -> bytes | None:
        """The states, if they are known by now."""
        future = lookup.future
        if lookup.states is None and future is not None and future.done():
            return future.result() if future.exception() is None else None
        return lookup.states

    def _ask(self, lookup: Lookup, after_s: float = 0.0) -> None:
        def work() -> bytes | None:
            time.sleep(after_s)
            return self._find(lookup.keys, lookup.node)

        lookup.future = self._pool.submit(work)

    def close(self) -> None:
        """Safe to repeat."""
        self._pool.shutdown(wait=False, cancel_futures=True)
