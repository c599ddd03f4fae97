"""A GPU by the CUDA driver.

It uses the device's primary context, which is the one that torch.cuda uses too: within a process,
addresses of tensors and handles of torch's streams can be used here, and the other way round.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p

from tensorcast.gpu import library as driver
from tensorcast.gpu.library import IpcHandle, Library
from tensorcast.gpu.port import HANDLE_BYTES, CudaEvent, Properties, round_up
from tensorcast.schema.errors import Corrupt, OutOfCapacity
from tensorcast.storage.memory import address_of, view_at

_PCI_BYTES = 32
_NAME_BYTES = 256


class DriverEvent:
    """Satisfies `CudaEvent`."""

    def __init__(self, gpu: CudaGpu, handle: int) -> None:
        self._gpu = gpu
        self.handle = handle
        weakref.finalize(self, gpu.destroy, "cuEventDestroy_v2", handle).atexit = False

    def is_done(self) -> bool:
        """As promised by the port."""
        status = self._gpu.enter().ask("cuEventQuery", self.handle)
        if status != driver.NOT_READY:
            self._gpu.library.check("cuEventQuery", status)
        return status != driver.NOT_READY

    def synchronize(self) -> None:
        """As promised by the port."""
        self._gpu.enter().call("cuEventSynchronize", self.handle)


class DriverStream:
    """Satisfies `CudaStream`: a stream of its own, or (with its handle) one of the application's,
    which stays the application's."""

    def __init__(self, gpu: CudaGpu, handle: int | None = None) -> None:
        self._gpu = gpu
        if handle is not None:
            self.handle = handle
            return
        made = c_void_p()
        gpu.enter().call("cuStreamCreate", byref(made), driver.STREAM_NON_BLOCKING)
        self.handle = made.value or 0
        weakref.finalize(self, gpu.destroy, "cuStreamDestroy_v2", self.handle).atexit = False

    def copy_in(self, target: int, source: memoryview) -> None:
        """As promised by the port."""
        where = target, address_of(source), source.nbytes
        self._gpu.enter().call("cuMemcpyHtoDAsync_v2", *where, self.handle)

    def copy_out(self, target: memoryview, source: int) -> None:
        """As promised by the port."""
        where = address_of(target), source, target.nbytes
        self._gpu.enter().call("cuMemcpyDtoHAsync_v2", *where, self.handle)

    def copy_within(self, target: int, source: int, size_bytes: int) -> None:
        """As promised by the port."""
        self._gpu.enter().call("cuMemcpyDtoDAsync_v2", target, source, size_bytes, self.handle)

    def record(self) -> DriverEvent:
        """As promised by the port."""
        library, made = self._gpu.enter(), c_void_p()
        library.call("cuEventCreate", byref(made), driver.EVENT_WITHOUT_TIMING)
        event = DriverEvent(self._gpu, made.value or 0)
        library.call("cuEventRecord", event.handle, self.handle)
        return event

    def wait_for(self, event: CudaEvent) -> None:
        """As promised by the port."""
        assert isinstance(event, DriverEvent), "made by this device"
        self._gpu.enter().call("cuStreamWaitEvent", self.handle, event.handle, 0)


class CudaGpu:
    """Satisfies `Gpu`. Holds the device's primary context, which takes some of its memory, from the
    first use until `close`."""

    def __init__(self, library: Library, index: int) -> None:
        self.library = library
        device = c_int()
        library.call("cuDeviceGet", byref(device), index)
        self._device = device.value
        self._properties = _read_properties(library, index, self._device)
        self._context: int | None = None
        self._lock = threading.Lock()
        self._pinned: set[int] = set()

    @property
    def properties(self) -> Properties:
        return self._properties

    def enter(self) -> Library:
        """The driver, with this device for the thread that calls."""
        with self._lock:
            if self._context is None:
                made = c_void_p()
                self.library.call("cuDevicePrimaryCtxRetain", byref(made), self._device)
                self._context = made.value
        self.library.call("cuCtxSetCurrent", self._context)
        return self.library

    # ---- memory ----------------------------------------------------------------------------

    def allocate(self, size_bytes: int) -> int:
        """As promised by the port."""
        library, address = self.enter(), c_uint64()
        library.call("cuMemAlloc_v2", byref(address), round_up(size_bytes))
        # Adapters see the memory past the driver: what is copied must be there when a copy ends.
        yes = c_int(1)
        library.call("cuPointerSetAttribute", byref(yes), driver.POINTER_SYNC_MEMOPS, address)
        return address.value

    def free(self, address: int) -> None:
        """As promised by the port."""
        self.enter().call("cuMemFree_v2", address)

    def pin(self, size_bytes: int) -> memoryview:
        """As promised by the port."""
        made = c_void_p()
        self.enter().call("cuMemHostAlloc", byref(made), size_bytes, driver.HOST_PORTABLE)
        if not made.value:
            raise OutOfCapacity(f"{size_bytes} bytes of memory cannot be pinned.")
        with self._lock:
            self._pinned.add(made.value)
        return view_at(made.value, size_bytes)

    def unpin(self, memory: memoryview) -> None:
        """As promised by the port."""
        self._unpin(address_of(memory))

    def _unpin(self, address: int) -> None:
        with self._lock:
            self._pinned.discard(address)
        self.enter().call("cuMemFreeHost", address)

    # ---- sharing ---------------------------------------------------------------------------

    def export(self, address: int) -> bytes:
        """As promised by the port."""
        handle = IpcHandle()
        self.enter().call("cuIpcGetMemHandle", byref(handle), address)
        return ctypes.string_at(byref(handle), HANDLE_BYTES)

    def adopt(self, handle: bytes) -> int:
        """As promised by the port."""
        if len(handle) != HANDLE_BYTES:
            raise Corrupt("This is no handle of a GPU's memory.")
        address = c_uint64()
        given = IpcHandle.from_buffer_copy(handle)
        flags = driver.IPC_LAZY_PEER_ACCESS
        self.enter().call("cuIpcOpenMemHandle_v2", byref(address), given, flags)
        return address.value

    def release(self, address: int) -> None:
        """As promised by the port."""
        self.enter().call("cuIpcCloseMemHandle", address)

    def open_dmabuf(self, address: int, size_bytes: int) -> int:
        """As promised by the port."""
        return self.enter().open_dmabuf(address, size_bytes)

    # ---- streams ---------------------------------------------------------------------------

    def open_stream(self) -> DriverStream:
        """As promised by the port."""
        return DriverStream(self)

    def stream_of(self, handle: int) -> DriverStream:
        """A stream of the application's, by its handle (`torch.cuda.Stream.cuda_stream`)."""
        return DriverStream(self, handle)

    def destroy(self, how: str, handle: int) -> None:
        """Ends what the driver has made. Nothing is left to end once the device is closed."""
        if self._context is not None:
            self.enter().ask(how, handle)

    def close(self) -> None:
        """As promised by the port."""
        if self._context is None:
            return
        for address in tuple(self._pinned):
            self._unpin(address)
        with self._lock:
            self._context = None
            self.library.call("cuDevicePrimaryCtxRelease_v2", self._device)


def _read_properties(library: Library, index: int, device: int) -> Properties:
    name = ctypes.create_string_buffer(_NAME_BYTES)
    pci = ctypes.create_string_buffer(_PCI_BYTES)
    total, has_dmabuf = c_size_t(), c_int()
    library.call("cuDeviceGetName", name, _NAME_BYTES, device)
    library.call("cuDeviceGetPCIBusId", pci, _PCI_BYTES, device)
    library.call("cuDeviceTotalMem_v2", byref(total), device)
    library.ask("cuDeviceGetAttribute", byref(has_dmabuf), driver.DEVICE_HAS_DMABUF, device)
    return Properties(
        index=index,
        name=name.value.decode(errors="replace"),
        pci=pci.value.decode().lower(),
        total_bytes=total.value,
        has_dmabuf=bool(has_dmabuf.value) and library.has_dmabuf,
    )


def open_devices(library: Library) -> tuple[CudaGpu, ...]:
    """All devices that this process may see. Raises Unavailable."""
    count = c_int()
    library.call("cuDeviceGetCount", byref(count))
    return tuple(CudaGpu(library, index) for index in range(count.value))
