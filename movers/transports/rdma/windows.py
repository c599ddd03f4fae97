"""Keys that let one peer READ one range until they are taken back.

A memory window (type 2, IBTA 10.6.7.2) is bound to a range and to the queue pair of the peer that
asked; its key ends with it, and with the queue pair. A window is used again only if the library
counts its keys on: two grants never have the same key. Where a device has no windows, the key is
that of the segment's second registration (`region.py`), which ends when its content is evicted.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from tensorcast.movers.transports.base import Memory
from tensorcast.movers.transports.rdma import verbs
from tensorcast.movers.transports.rdma.endpoint import Done, Endpoint
from tensorcast.movers.transports.rdma.region import Regions
from tensorcast.movers.transports.rdma.talk import REQUESTS


class Key:
    """A key of a window, or of a registration (`window` None), and the address of the range."""

    def __init__(self, key: int, address: int, window: verbs.MW | None) -> None:
        self.key = key
        self.address = address
        self.window = window


class Keys:
    """The keys of one queue pair. Owns its windows until `close`."""

    def __init__(self, endpoint: Endpoint, regions: Regions) -> None:
        self._endpoint = endpoint
        self._regions = regions
        self._numbers = itertools.count(REQUESTS)
        self._free: list[verbs.MW] = []
        self._ending: dict[int, tuple[Key, Callable[[], None]]] = {}
        self._windows: set[verbs.MW] = set()

    def lend(self, memory: Memory, start: int, stop: int) -> Key:
        """A key for bytes of memory that is in use. A message that is posted afterwards comes when
        it is good. Raises OutOfCapacity, Unavailable, PyverbsError."""
        device = self._endpoint.device
        if not device.uses_windows:
            registered = self._regions.register(memory, device, is_remote=True)
            return Key(registered.rkey, registered.base + start, None)
        registered = self._regions.register(memory, device, is_remote=False)
        window = self._free.pop() if self._free else self._make()
        address = registered.base + start
        number = next(self._numbers)
        key = self._endpoint.bind(number, window, registered, address, stop - start)
        return Key(key, address, window)

    def _make(self) -> verbs.MW:
        window = verbs.MW(self._endpoint.device.domain, verbs.enums.IBV_MW_TYPE_2)
        self._windows.add(window)
        return window

    def end(self, lent: Key, then: Callable[[], None]) -> None:
        """The key is good no longer; calls `then` when that is so. Until then the memory must stay
        registered."""
        if lent.window is None:
            then()
            return
        number = next(self._numbers)
        self._ending[number] = lent, then
        self._endpoint.unbind(number, lent.key)

    def settle(self, done: Done) -> None:
        """A request of ours has ended: a window may not be needed any more."""
        lent, then = self._ending.pop(done.number, (None, None))
        if lent is None or then is None:
            return
        assert lent.window is not None, "others end at once"
        if lent.window.rkey == lent.key:
            self._free.append(lent.window)
        else:
            self._windows.discard(lent.window)
            lent.window.close()
        then()

    def close(self) -> None:
        """Ends all keys and gives the windows back: before the queue pair, which they refer to.
        Safe to repeat."""
        windows, self._windows = self._windows, set()
        for window in windows:
            window.close()
        ending, self._ending = self._ending, {}
        for _, then in ending.values():
            then()
