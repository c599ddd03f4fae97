"""Memory that is registered with adapters, once, and for how long.

The memory of a GPU is registered by a dmabuf descriptor of the driver's where there is one
(`ibv_reg_dmabuf_mr`: its bytes are counted from 0 then), else by its address, which the kernel
module nvidia-peermem understands.

A segment stays registered as long as it is mapped: for our own writes into it, and as what memory
windows are bound to. Where there are no windows, a second registration can be read from afar; it
ends when the segment's content is evicted, so an old key never shows what came after. Other memory
is registered for as long as it is used.
"""

from __future__ import annotations

import logging
import os
import threading
from contextlib import suppress
from typing import Protocol

from tensorcast.movers.transports.base import DeviceMemory, Memory, Share
from tensorcast.movers.transports.rdma import verbs
from tensorcast.movers.transports.rdma.device import Device
from tensorcast.schema.errors import OutOfCapacity, Unavailable
from tensorcast.storage.memory import address_of

_logger = logging.getLogger(__name__)


class Registered(Protocol):
    """A registration, as pyverbs has it."""

    lkey: int
    rkey: int

    def close(self) -> None: ...


class Registration:
    """Registered memory: requests name its bytes from `base` on."""

    def __init__(self, region: Registered, base: int) -> None:
        self.region = region
        self.base = base
        self.lkey, self.rkey = region.lkey, region.rkey

    def close(self) -> None:
        """It is of no more use. Safe to repeat."""
        self.region.close()


class _Memory:
    """The registrations of one piece of memory: by device, whether it can be read from afar, and
    size."""

    def __init__(self, address: int, size_bytes: int, *, is_kept: bool) -> None:
        self.address = address
        self.size_bytes = size_bytes
        self.is_kept = is_kept
        self.users = 0
        self.made: dict[tuple[str, int, bool, int], Registration] = {}

    def drop(self, *, is_remote: bool | None = None) -> None:
        """Ends the registrations, all or those of one kind."""
        for key in list(self.made):
            if is_remote is None or key[2] is is_remote:
                self.made.pop(key).close()


class Regions:
    """All that is registered, with whichever devices. Safe in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[int, _Memory] = {}

    # ---- of segments -----------------------------------------------------------------------

    def mapped(self, memory: Memory) -> None:
        """A segment begins: what is registered of it is kept until `unmapped`."""
        address = place_of(memory)
        with self._lock:
            self._known[address] = _Memory(address, memory.nbytes, is_kept=True)

    def emptied(self, memory: Memory) -> None:
        """Its content is not needed any more: nobody else may read it from now on."""
        with self._lock:
            found = self._known.get(place_of(memory))
            if found is not None:
                found.drop(is_remote=True)

    def unmapped(self, memory: Memory) -> None:
        """It ends."""
        with self._lock:
            found = self._known.pop(place_of(memory), None)
            if found is not None:
                found.drop()

    # ---- of users --------------------------------------------------------------------------

    def use(self, memory: Memory) -> None:
        """Somebody will fill or lend it; `leave` must follow."""
        address = place_of(memory)
        with self._lock:
            known = self._known.get(address)
            if known is None:
                known = self._known[address] = _Memory(address, memory.nbytes, is_kept=False)
            if not known.is_kept:
                known.size_bytes = max(known.size_bytes, memory.nbytes)
            known.users += 1

    def leave(self, memory: Memory) -> None:
        """It is done."""
        address = place_of(memory)
        with self._lock:
            known = self._known.get(address)
            if known is None:
                return
            known.users -= 1
            if not known.users and not known.is_kept:
                del self._known[address]
                known.drop()

    def register(self, memory: Memory, device: Device, *, is_remote: bool) -> Registration:
        """The registration of memory that is in use; `is_remote`: its key lets peers read. Holds
        the interpreter while the kernel pins the pages. Raises OutOfCapacity when it must not, and
        Unavailable when the device does not reach a GPU's memory."""
        address = place_of(memory)
        with self._lock:
            known = self._known[address]
            key = (device.name, device.port.number, is_remote, known.size_bytes)
            found = known.made.get(key)
            if found is None:
                access = _access(device, is_remote)
                if isinstance(memory, memoryview):
                    found = _register(device, address, known.size_bytes, access)
                else:
                    found = _register_device(device, memory, access)
                known.made[key] = found
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


def place_of(memory: Memory) -> int:
    """The address of memory of either kind."""
    return address_of(memory) if isinstance(memory, memoryview) else memory.address


def _access(device: Device, is_remote: bool) -> int:
    flags = verbs.enums
    access = int(flags.IBV_ACCESS_REMOTE_READ if is_remote else flags.IBV_ACCESS_LOCAL_WRITE)
    if not is_remote and device.uses_windows:
        access |= flags.IBV_ACCESS_MW_BIND
    return access


def _register(device: Device, address: int, size_bytes: int, access: int) -> Registration:
    if device.uses_odp:
        access |= verbs.enums.IBV_ACCESS_ON_DEMAND
    return Registration(register_host(device, address, size_bytes, access), address)


def register_host(device: Device, address: int, size_bytes: int, access: int) -> Registered:
    """Registers memory of the host. Raises OutOfCapacity with what helps; the log tells it too, the
    first time for each device: bytes go over TCP then, and nobody would know why."""
    try:
        made: Registered = verbs.MR(device.domain, size_bytes, access, address=address)
        return made
    except verbs.PyverbsError as error:
        why = str(error).rstrip(".")
        refusal = OutOfCapacity(
            f"{size_bytes} bytes cannot be registered with {device.name}: {why}.",
            hint="Raise the limit of locked memory (`ulimit -l unlimited`, LimitMEMLOCK=infinity), "
            "or give the container IPC_LOCK.",
        )
        if not device.has_refused:
            device.has_refused = True
            _logger.warning("nodes are reached over TCP: %s", refusal)
        raise refusal from error


def _register_device(device: Device, memory: DeviceMemory, access: int) -> Registration:
    """Tries a dmabuf first. Raises Unavailable with both reasons."""
    try:
        return Registration(_register_dmabuf(device, memory, access), 0)
    except (Unavailable, verbs.PyverbsError, TypeError) as error:
        why_not = error
    try:
        made: Registered = verbs.MR(device.domain, memory.nbytes, access, address=memory.address)
    except verbs.PyverbsError as error:
        raise Unavailable(
            f"{device.name} does not reach the GPU's memory: by dmabuf: {why_not}; by address: "
            f"{error}.",
            hint="Run `tcctl doctor rdma`; bytes go through the host's memory meanwhile.",
        ) from error
    return Registration(made, memory.address)


def _register_dmabuf(device: Device, memory: DeviceMemory, access: int) -> Registered:
    """Raises Unavailable, PyverbsError; TypeError from a pyverbs that takes no descriptor."""
    if verbs.DmaBufMR is None:
        raise Unavailable("this pyverbs knows no dmabuf.")
    fd = memory.open_dmabuf()
    try:
        made: Registered = verbs.DmaBufMR(device.domain, memory.nbytes, access, dmabuf=fd)
        return made
    finally:
        os.close(fd)  # the registration holds the memory


class RdmaRegion:
    """Memory that pulls fill. Satisfies `base.Region`; registered when it is first used."""

    def __init__(self, regions: Regions, memory: Memory, share: Share | None) -> None:
        self._regions = regions
        if isinstance(memory, memoryview):
            memory = memory.cast("B") if memory.format != "B" else memory[:]
        self._memory = memory
        self._is_used = memory.nbytes > 0
        self.share = share
        if self._is_used:
            regions.use(memory)

    @property
    def memory(self) -> memoryview:
        assert isinstance(self._memory, memoryview), "only the adapter sees a device's"
        return self._memory

    @property
    def is_host(self) -> bool:
        """Whether it is memory of the host."""
        return isinstance(self._memory, memoryview)

    def content(self, start: int, stop: int) -> memoryview:
        """Some of its bytes; of a device's memory, a copy."""
        if isinstance(self._memory, memoryview):
            return self._memory[start:stop]
        return self._memory.read(start, stop)

    def register(self, device: Device) -> Registration:
        """What lets a device write into it. Raises OutOfCapacity, Unavailable."""
        return self._regions.register(self._memory, device, is_remote=False)

    def close(self) -> None:
        """Ends the use of the memory. Safe to repeat."""
        if self._is_used:
            self._is_used = False
            with suppress(ValueError):
                self._regions.leave(self._memory)
        if isinstance(self._memory, memoryview):
            self._memory.release()
