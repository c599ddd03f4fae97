"""Segments in the memory of GPUs, and the budget of each device.

Another process that reads a segment has it open through a handle, and a lifeline as for any
segment: memory that is released is freed once its last reader has gone.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence

from tensorcast.gpu.port import Gpu, round_up
from tensorcast.gpu.staging import Piece, Staging
from tensorcast.movers.memory.pool import NoWatcher, SegmentWatcher
from tensorcast.schema.errors import OutOfCapacity


class CudaSegment:
    """An allocation of a device. Satisfies `base.DeviceMemory`."""

    def __init__(self, device: CudaDevice, address: int, size_bytes: int) -> None:
        self.name = f"gpu-{secrets.token_hex(8)}"
        self.device = device
        self.address = address
        self.nbytes = size_bytes
        self.capacity_bytes = round_up(size_bytes)

    @property
    def pci(self) -> str:
        """The address of the device."""
        return self.device.gpu.properties.pci

    def export(self) -> bytes:
        """A handle for readers."""
        return self.device.gpu.export(self.address)

    def open_dmabuf(self) -> int:
        """A dmabuf descriptor of all of it, which the caller closes. Raises Unavailable."""
        return self.device.gpu.open_dmabuf(self.address, self.capacity_bytes)

    def fill(self, start: int, source: memoryview) -> None:
        """Copies bytes of the host in, from `start` on. Blocks, as all of these do."""

        def move(part: memoryview, skipped: int) -> None:
            part[:] = source[skipped : skipped + len(part)]

        self.device.staging().fill([Piece(self.address + start, source.nbytes, move)])

    def take(self, start: int, target: memoryview) -> None:
        """Copies bytes out, from `start` on."""

        def move(part: memoryview, skipped: int) -> None:
            target[skipped : skipped + len(part)] = part

        self.device.staging().drain([Piece(self.address + start, target.nbytes, move)])

    def read(self, start: int, stop: int) -> memoryview:
        """A copy of some of its bytes."""
        found = memoryview(bytearray(stop - start))
        self.take(start, found)
        return found


class CudaDevice:
    """A device and how much of it may be used. Its pinned buffers are made with the first copy."""

    def __init__(self, gpu: Gpu, capacity_bytes: int) -> None:
        self.gpu = gpu
        self.capacity_bytes = min(capacity_bytes, gpu.properties.total_bytes)
        self.used_bytes = 0
        self._staging: Staging | None = None
        self._lock = threading.Lock()

    @property
    def free_bytes(self) -> int:
        return self.capacity_bytes - self.used_bytes

    def staging(self) -> Staging:
        """The way in and out. From any thread."""
        with self._lock:
            if self._staging is None:
                self._staging = Staging(self.gpu)
            return self._staging

    def close(self) -> None:
        """Gives the buffers and the device back. Safe to repeat."""
        with self._lock:
            staging, self._staging = self._staging, None
        if staging is not None:
            staging.close()
        self.gpu.close()


class CudaPool:
    """Owns the devices, and segments until `release`. Safe in any thread. `readers` tells how many
    have a segment open, by its name."""

    def __init__(
        self,
        gpus: Sequence[Gpu],
        bytes_each: int,
        readers: Callable[[str], int] = lambda _: 0,
        watcher: SegmentWatcher | None = None,
    ) -> None:
        self._watcher = watcher or NoWatcher()
        self.devices = tuple(CudaDevice(gpu, bytes_each) for gpu in gpus)
        self._readers = readers
        self._lock = threading.Lock()
        self._retired: dict[str, CudaSegment] = {}

    @property
    def capacity_bytes(self) -> int:
        """What all devices together may hold."""
        return sum(device.capacity_bytes for device in self.devices)

    @property
    def used_bytes(self) -> int:
        """What is taken, also by what is released and still read."""
        return sum(device.used_bytes for device in self.devices)

    def check_possible(self, size_bytes: int) -> None:
        """Raises OutOfCapacity, for ever, for what no device could hold."""
        largest = max((device.capacity_bytes for device in self.devices), default=0)
        if round_up(size_bytes) > largest:
            raise OutOfCapacity(
                f"{size_bytes} bytes never fit: a GPU here gives {largest} bytes at most.",
                hint="Raise TENSORCAST_GPU_BYTES, or use another tier.",
                retryable=False,
            )

    def shortfall(self, size_bytes: int) -> int:
        """How many bytes must go from the roomiest device before that much fits; 0: none."""
        self.reclaim()
        roomiest = max((device.free_bytes for device in self.devices), default=0)
        return max(0, round_up(size_bytes) - roomiest)

    def allocate(self, size_bytes: int) -> CudaSegment:
        """A segment on the device with most room. Raises OutOfCapacity."""
        self.check_possible(size_bytes)
        self.reclaim()
        with self._lock:
            device = max(self.devices, key=lambda one: one.free_bytes)
            taken = round_up(size_bytes)
            if taken > device.free_bytes:
                raise OutOfCapacity(
                    f"{size_bytes} bytes are needed; {device.free_bytes} of a GPU are free.",
                    hint="Evict replicas of the tier gpu, or raise TENSORCAST_GPU_BYTES.",
                )
            address = device.gpu.allocate(size_bytes)
            device.used_bytes += taken
        segment = CudaSegment(device, address, size_bytes)
        self._watcher.mapped(segment)
        return segment

    def release(self, segment: CudaSegment) -> None:
        """Its content is not needed any more: freed at once, or after its last reader."""
        self._watcher.emptied(segment)
        with self._lock:
            self._retired[segment.name] = segment
        self.reclaim()

    def reclaim(self) -> None:
        """Frees what was released and has no readers."""
        with self._lock:
            for name, segment in list(self._retired.items()):
                if not self._readers(name):
                    del self._retired[name]
                    self._watcher.unmapped(segment)
                    segment.device.gpu.free(segment.address)
                    segment.device.used_bytes -= segment.capacity_bytes

    def close(self) -> None:
        """Gives everything back: readers have what they have copied. Safe to repeat."""
        for device in self.devices:
            device.close()
