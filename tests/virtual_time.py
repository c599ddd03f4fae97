"""An event loop whose clock jumps: whatever sleeps is woken at once, in the order of its time.

So an hour of a simulated cluster takes as long as its work, and a seed always gives the same run.
Nothing in it may touch a socket or a thread.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine


class _Jumping(selectors.BaseSelector):
    """Never waits: moves the clock instead."""

    def __init__(self, inner: selectors.BaseSelector) -> None:
        self.now_s = 0.0
        self._inner = inner

    def select(self, timeout=None):
        found = self._inner.select(0)
        if not found:
            assert timeout is not None, "everything waits for something that will never happen"
            self.now_s += timeout
        return found

    def register(self, fileobj, events, data=None):
        return self._inner.register(fileobj, events, data)

    def unregister(self, fileobj):
        return self._inner.unregister(fileobj)

    def get_map(self):
        return self._inner.get_map()

    def close(self) -> None:
        self._inner.close()


class VirtualLoop(asyncio.SelectorEventLoop):
    """A selector loop on a jumping clock."""

    def __init__(self) -> None:
        self._jumping = _Jumping(selectors.DefaultSelector())
        super().__init__(self._jumping)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._jumping.now_s


def run_virtual(coroutine: Coroutine[object, object, object]):
    """Runs a coroutine to its end in virtual time; returns what it returns."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
