"""What is needed of a GPU: memory, copies that go on by themselves, and memory that others share.

Copies are asynchronous. A CUDA stream does what it was given in order; two streams know nothing of
each other unless one waits for an event of the other. Memory that a copy reads or writes must stay
as it is until an event that was recorded after the copy is done.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

GRANULE_BYTES = 2 << 20
"""Sizes of allocations are multiples of this: smaller ones share a block of the driver's, and then
a handle would open the block, not the allocation."""

HANDLE_BYTES = 64
"""The size of a handle for another process (`CUipcMemHandle`)."""


class Properties(msgspec.Struct, frozen=True, kw_only=True):
    """`index` counts the devices that this process sees; `pci` is the address of the device, by
    which two processes mean the same one. `has_dmabuf`: the driver gives descriptors of memory."""

    index: int
    name: str
    pci: str
    total_bytes: int
    has_dmabuf: bool = False


class CudaEvent(Protocol):
    """A point in a CUDA stream."""

    def is_done(self) -> bool:
        """Whether all that was given to the stream before it has ended."""
        ...

    def synchronize(self) -> None:
        """Blocks until that is so; other threads run meanwhile."""
        ...


class CudaStream(Protocol):
    """Copies, in order. Host memory must be pinned, and addresses lie within live memory."""

    def copy_in(self, target: int, source: memoryview) -> None:
        """From pinned memory to the device. Returns at once, as all of these do."""
        ...

    def copy_out(self, target: memoryview, source: int) -> None:
        """From the device to pinned memory."""
        ...

    def copy_within(self, target: int, source: int, size_bytes: int) -> None:
        """Within the device, or from a device that it reaches."""
        ...

    def record(self) -> CudaEvent:
        """An event for what was given so far."""
        ...

    def wait_for(self, event: CudaEvent) -> None:
        """What is given from now on waits for an event of another stream of the device."""
        ...


class Memory(Protocol):
    """A device's own memory, and memory of the host that it reaches without the CPU."""

    def allocate(self, size_bytes: int) -> int:
        """The address of new memory of at least that size, with any content. Raises
        OutOfCapacity."""
        ...

    def free(self, address: int) -> None:
        """Gives an allocation back: nothing uses it any more, here or in another process."""
        ...

    def pin(self, size_bytes: int) -> memoryview:
        """New pinned memory of the host. Raises OutOfCapacity."""
        ...

    def unpin(self, memory: memoryview) -> None:
        """Gives pinned memory back: no copy uses it any more."""
        ...


class Sharing(Protocol):
    """Memory that others use without a copy."""

    def export(self, address: int) -> bytes:
        """A handle of an allocation for other processes of this machine, `HANDLE_BYTES` long."""
        ...

    def adopt(self, handle: bytes) -> int:
        """The address of memory that another process has exported. It must stay allocated there
        until `release`. Raises Unavailable when it has gone, Corrupt for what is no handle."""
        ...

    def release(self, address: int) -> None:
        """Ends the use of adopted memory: no copy uses it any more."""
        ...

    def open_dmabuf(self, address: int, size_bytes: int) -> int:
        """A dmabuf descriptor of an allocation, which the caller closes. Raises Unavailable where
        the driver has none."""
        ...


class Gpu(Memory, Sharing, Protocol):
    """A device: the port as a whole. Safe in any thread; a stream is for one thread at a time."""

    @property
    def properties(self) -> Properties: ...

    def open_stream(self) -> CudaStream:
        """A new stream, which waits for no other one."""
        ...

    def close(self) -> None:
        """Gives the device back, with all that is left of it. Safe to repeat."""
        ...


def round_up(size_bytes: int) -> int:
    """What an allocation of that size takes."""
    return max(1, -(-size_bytes // GRANULE_BYTES)) * GRANULE_BYTES
