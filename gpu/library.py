"""The functions of the CUDA driver (libcuda.so.1) that are used here, with their types and errors.

Names and numbers are those of `cuda.h` (CUDA driver API, 12.x); `_v2` is what that header makes of
the plain names.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Final

from tensorcast.gpu.port import HANDLE_BYTES
from tensorcast.schema.errors import OutOfCapacity, Unavailable

LIBRARY: Final = "libcuda.so.1"
SUCCESS: Final = 0
OUT_OF_MEMORY: Final = 2
NOT_READY: Final = 600

STREAM_NON_BLOCKING: Final = 1
EVENT_WITHOUT_TIMING: Final = 3
"""CU_EVENT_BLOCKING_SYNC (a waiting thread sleeps) and CU_EVENT_DISABLE_TIMING."""

HOST_PORTABLE: Final = 1
IPC_LAZY_PEER_ACCESS: Final = 1
RANGE_DMABUF: Final = 1
POINTER_SYNC_MEMOPS: Final = 6
DEVICE_HAS_DMABUF: Final = 124


class IpcHandle(ctypes.Structure):
    """`CUipcMemHandle`, which goes by value."""

    _fields_ = [("reserved", ctypes.c_char * HANDLE_BYTES)]


_DEVICE_POINTER = c_uint64
_SIGNATURES: Final[dict[str, tuple[object, ...]]] = {
    "cuInit": (c_uint,),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceGetPCIBusId": (c_char_p, c_int, c_int),
    "cuDeviceTotalMem_v2": (POINTER(c_size_t), c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuDevicePrimaryCtxRelease_v2": (c_int,),
    "cuCtxSetCurrent": (c_void_p,),
    "cuMemAlloc_v2": (POINTER(_DEVICE_POINTER), c_size_t),
    "cuMemFree_v2": (_DEVICE_POINTER,),
    "cuMemHostAlloc": (POINTER(c_void_p), c_size_t, c_uint),
    "cuMemFreeHost": (c_void_p,),
    "cuPointerSetAttribute": (c_void_p, c_int, _DEVICE_POINTER),
    "cuIpcGetMemHandle": (POINTER(IpcHandle), _DEVICE_POINTER),
    "cuIpcOpenMemHandle_v2": (POINTER(_DEVICE_POINTER), IpcHandle, c_uint),
    "cuIpcCloseMemHandle": (_DEVICE_POINTER,),
    "cuStreamCreate": (POINTER(c_void_p), c_uint),
    "cuStreamDestroy_v2": (c_void_p,),
    "cuStreamWaitEvent": (c_void_p, c_void_p, c_uint),
    "cuEventCreate": (POINTER(c_void_p), c_uint),
    "cuEventDestroy_v2": (c_void_p,),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventQuery": (c_void_p,),
    "cuEventSynchronize": (c_void_p,),
    "cuMemcpyHtoDAsync_v2": (_DEVICE_POINTER, c_void_p, c_size_t, c_void_p),
    "cuMemcpyDtoHAsync_v2": (c_void_p, _DEVICE_POINTER, c_size_t, c_void_p),
    "cuMemcpyDtoDAsync_v2": (_DEVICE_POINTER, _DEVICE_POINTER, c_size_t, c_void_p),
}
_DMABUF: Final = "cuMemGetHandleForAddressRange"  # CUDA 11.7


class Library:
    """The driver, ready for use. Its calls let other threads run. Raises Unavailable, with the
    reason, where there is none that works."""

    def __init__(self) -> None:
        try:
            self._loaded = ctypes.CDLL(LIBRARY)
            for name, types in _SIGNATURES.items():
                getattr(self._loaded, name).argtypes = types
        except (OSError, AttributeError) as error:
            raise Unavailable(f"The CUDA driver cannot be loaded: {error}.") from error
        self.has_dmabuf = hasattr(self._loaded, _DMABUF)
        if self.has_dmabuf:
            getattr(self._loaded, _DMABUF).argtypes = (
                *(c_void_p, _DEVICE_POINTER, c_size_t),
                *(c_int, c_uint64),
            )
        self.call("cuInit", 0)

    def call(self, name: str, *arguments: object) -> None:
        """Raises OutOfCapacity or Unavailable with what the driver says."""
        self.check(name, self.ask(name, *arguments))

    def ask(self, name: str, *arguments: object) -> int:
        """The status of a call."""
        return int(getattr(self._loaded, name)(*arguments))

    def check(self, name: str, status: int) -> None:
        """Raises what a status stands for."""
        if status == SUCCESS:
            return
        text = c_char_p()
        self._loaded.cuGetErrorString(status, byref(text))
        said = text.value.decode(errors="replace") if text.value else f"error {status}"
        if status == OUT_OF_MEMORY:
            raise OutOfCapacity(f"The GPU has no memory left: {said} ({name}).")
        raise Unavailable(f"The CUDA driver refuses {name}: {said}.", hint="See `nvidia-smi`.")

    def open_dmabuf(self, address: int, size_bytes: int) -> int:
        """A dmabuf descriptor for a range of allocated memory. Raises Unavailable."""
        if not self.has_dmabuf:
            raise Unavailable("This CUDA driver gives no dmabuf.", hint="CUDA 11.7 does.")
        fd = c_int(-1)
        self.call(_DMABUF, byref(fd), address, size_bytes, RANGE_DMABUF, 0)
        return fd.value
