"""Memory that is registered with adapters, once, and for how long.

A segment stays registered as long as it is mapped: for our own writes into it, and as what memory
windows are bound to. Where there are no windows, a second registration can be read from afar; it
ends when the segment's content is evicted, so an old key never shows what came after. Other memory
is registered for as long as it is used.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from tensorcast.movers.transports.base import Share
from tensorcast.movers.transports.rdma import verbs
from tensorcast.movers.transports.rdma.device import Device
from tensorcast.schema.errors import OutOfCapacity
from tensorcast.storage.memory import address_of


class Registered(Protocol):
    """A registration, as pyverbs has it."""

    lkey: int
    rkey: int

    def close(self) -> None: ...


class _Memory:
    """The registrations of one piece of memory: by device, whether it can be read from afar, and
    size."""

    def __init__(self, address: int, size_bytes: int, *, is_kept: bool) -> None:
        self.address = address
        self.size_bytes = size_bytes
        self.is_kept = is_kept
        self.users = 0
        self.made: dict[tuple[int, bool, int], Registered] = {}

    def drop(self, *, is_remote: bool | None = None) -> None:
        """Ends the registrations, all or those of one kind."""
        for key in list(self.made):
            if is_remote is None or key[1] is is_remote:
                self.made.pop(key).close()


class Regions:
    """All that is registered with some devices. Safe in any thread."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self._devices = tuple(devices)
        self._lock = threading.Lock()
        self._known: dict[int, _Memory] = {}

    # ---- of segments -----------------------------------------------------------------------

    def mapped(self, memory: memoryview) -> None:
        """A segment begins: what is registered of it is kept until `unmapped`."""
        address = address_of(memory)
        with self._lock:
            self._known[address] = _Memory(address, memory.nbytes, is_kept=True)

    def emptied(self, memory: memoryview) -> None:
        """Its content is not needed any more: nobody else may read it from now on."""
        with self._lock:
            found = self._known.get(address_of(memory))
            if found is not None:
                found.drop(is_remote=True)

    def unmapped(self, memory: memoryview) -> None:
        """It ends."""
        with self._lock:
            found = self._known.pop(address_of(memory), None)
            if found is not None:
                found.drop()

    # ---- of users --------------------------------------------------------------------------

    def use(self, memory: memoryview) -> None:
        """Somebody will fill or lend it; `leave` must follow."""
        address = address_of(memory)
        with self._lock:
            known = self._known.get(address)
            if known is None:
                known = self._known[address] = _Memory(address, memory.nbytes, is_kept=False)
            if not known.is_kept:
                known.size_bytes = max(known.size_bytes, memory.nbytes)
            known.users += 1

    def leave(self, memory: memoryview) -> None:
        """It is done."""
        address = address_of(memory)
        with self._lock:
            known = self._known.get(address)
            if known is None:
                return
            known.users -= 1
            if not known.users and not known.is_kept:
                del self._known[address]
                known.drop()

    def register(self, memory: memoryview, device: Device, *, is_remote: bool) -> Registered:
        """The registration of memory that is in use; `is_remote`: its key lets peers read. Holds
        the interpreter while the kernel pins the pages. Raises OutOfCapacity when it must not."""
        address = address_of(memory)
        with self._lock:
            known = self._known[address]
            key = (self._devices.index(device), is_remote, known.size_bytes)
            found = known.made.get(key)
            if found is None:
                found = known.made[key] = _register(device, address, known.size_bytes, is_remote)
            return found

    def count(self) -> int:
        """How many registrations there are."""
        with self._lock:
            return sum(len(known.made) for known in self._known.values())

    def close(self) -> None:
        """Ends them all. Safe to repeat."""
        with self._lock:
            for known in self._known.values():
                known.drop()
            self._known.clear()


def _register(device: Device, address: int, size_bytes: int, is_remote: bool) -> Registered:
    flags = verbs.enums
    access = flags.IBV_ACCESS_REMOTE_READ if is_remote else flags.IBV_ACCESS_LOCAL_WRITE
    if not is_remote and device.uses_windows:
        access |= flags.IBV_ACCESS_MW_BIND
    if device.uses_odp:
        access |= flags.IBV_ACCESS_ON_DEMAND
    try:
        registered: Registered = verbs.MR(device.domain, size_bytes, access, address=address)
    except verbs.PyverbsError as error:
        raise OutOfCapacity(
            f"{size_bytes} bytes cannot be registered with {device.name}: {error}.",
            hint="Raise the limit of locked memory (`ulimit -l unlimited`, LimitMEMLOCK).",
        ) from error
    return registered


class RdmaRegion:
    """Memory that pulls fill. Satisfies `base.Region`; registered when it is first used."""

    def __init__(self, regions: Regions, memory: memoryview, share: Share | None) -> None:
        self._regions = regions
        self._memory = memory.cast("B") if memory.format != "B" else memory[:]
        self._is_used = self._memory.nbytes > 0
        self.address = address_of(self._memory) if self._is_used else 0
        self.share = share
        if self._is_used:
            regions.use(self._memory)

    @property
    def memory(self) -> memoryview:
        return self._memory

    def key(self, device: Device) -> int:
        """The key under which a device may write into it. Raises OutOfCapacity."""
        return self._regions.register(self._memory, device, is_remote=False).lkey

    def close(self) -> None:
        """Ends the use of the memory. Safe to repeat."""
        if self._is_used:
            self._is_used = False
            with suppress(ValueError):
                self._regions.leave(self._memory)
        self._memory.release()
