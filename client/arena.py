"""Memory of a segment in which an application makes its tensors, so that a put copies nothing.

An arena is a segment of the local mover, mapped for writing, with a place for each tensor. To put
it, its writable mapping is replaced, at the same addresses, by a private one of the same bytes: the
tensors stay valid and show what they did, and what is written to them later is nobody else's.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, Self

from tensorcast.client.socket import Connection
from tensorcast.schema.errors import Corrupt, OutOfCapacity
from tensorcast.schema.tensors import Index
from tensorcast.storage.memory import address_of

if TYPE_CHECKING:
    import torch

_MREMAP_MAYMOVE, _MREMAP_DONTUNMAP = 1, 4
_MAP_FIXED, _MAP_NORESERVE = 0x10, 0x4000  # Python has names for them from 3.13 on
_UNMAP_BYTES = 32 << 20
_FAILED = ctypes.c_void_p(-1).value
_PROTECTION = mmap.PROT_READ | mmap.PROT_WRITE


class Place(NamedTuple):
    """A tensor of an arena as torch sees it."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    address: int


class _Holdings:
    """What an arena holds beside its memory; closed when the last of its tensors is gone."""

    def __init__(self, connection: Connection, readable: int, lifeline: int) -> None:
        self.connection = connection
        self.readable = readable
        self._lifeline = lifeline

    def close(self) -> None:
        self.connection.close()
        self.close_readable()
        os.close(self._lifeline)

    def close_readable(self) -> None:
        if self.readable >= 0:
            os.close(self.readable)
            self.readable = -1


class Arena(mmap.mmap):
    """The memory. It lives as long as a tensor over it; never `close` it."""

    index: Index
    size_bytes: int
    session: int
    is_private: bool
    is_taken: bool
    places: tuple[Place, ...]
    _holdings: _Holdings
    _aside: int | None

    @classmethod
    def over(
        cls,
        descriptors: tuple[int, ...],
        connection: Connection,
        session: int,
        index: Index,
        size_bytes: int,
    ) -> Self:
        """Maps a segment that the mover lent for lasting use. Takes over descriptors and
        connection. Raises Corrupt for what is no such segment, OutOfCapacity when the process can
        map no more."""
        with contextlib.ExitStack() as unused:
            unused.callback(connection.close)
            for descriptor in descriptors:
                unused.callback(os.close, descriptor)
            if len(descriptors) != 3 or os.fstat(descriptors[0]).st_size < size_bytes:
                raise Corrupt("The mover's segment is not what was asked for.")
            writable, readable, lifeline = descriptors
            arena = cls._reserve(size_bytes)
            _map_over(arena.address, size_bytes, mmap.MAP_SHARED, writable)
            unused.pop_all()
        os.close(writable)  # the mapping keeps what is behind it
        arena.index, arena.size_bytes, arena.session = index, size_bytes, session
        arena.is_private, arena.is_taken, arena.places = False, False, ()
        arena._aside = None
        arena._holdings = _Holdings(connection, readable, lifeline)
        # At interpreter exit the kernel closes them, after the last tensor is gone for sure.
        weakref.finalize(arena, arena._holdings.close).atexit = False
        return arena

    @classmethod
    def _reserve(cls, size_bytes: int) -> Self:
        """Addresses, with nothing there. (A mapping of the segment by Python would keep a
        descriptor that can be written to.)"""
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        try:
            return cls(-1, size_bytes, flags=flags)
        except OSError as error:
            raise _exhausted(size_bytes, error.strerror) from error

    @property
    def address(self) -> int:
        """Where its first byte is."""
        with memoryview(self) as memory:
            return address_of(memory)

    @property
    def connection(self) -> Connection:
        """The connection on which its segment was opened: it is given back with it."""
        return self._holdings.connection

    def note_places(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """These are its tensors."""
        self.places = tuple(_place(name, tensor) for name, tensor in tensors.items())

    def holds(self, tensors: Mapping[str, object]) -> bool:
        """Whether these are its tensors, all of them, in the same order and under the same
        names, and none was put before."""
        import torch

        if self.is_private or self.is_taken or len(tensors) != len(self.places):
            return False
        return all(
            isinstance(tensor, torch.Tensor)
            and tensor.device.type == "cpu"
            and tensor.layout == torch.strided
            and not (tensor.is_conj() or tensor.is_neg() or hasattr(tensor, "to_local"))
            and _place(name, tensor) == place
            for (name, tensor), place in zip(tensors.items(), self.places, strict=True)
        )

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """While it is put: by one at a time. When that has made it private, its connection has
        nothing more to do, and what is left of the old mapping goes in a thread."""
        self.is_taken = True
        try:
            yield
        finally:
            self.is_taken = False
            if self.is_private:
                self.connection.close()
                if self._aside is not None:
                    threading.Thread(target=self.give_up, name="tensorcast unmap").start()

    def make_private(self) -> None:
        """From now on what is written to the tensors is theirs alone. Takes no time: the old
        mapping is only moved aside, for `give_up`. Raises OutOfCapacity; then nothing has
        changed."""
        address = self.address
        aside = _move_aside(address, self.size_bytes)
        try:
            _map_over(address, self.size_bytes, mmap.MAP_PRIVATE, self._holdings.readable)
        except OutOfCapacity:
            _unmap(aside, self.size_bytes)
            raise
        self._aside = aside
        self.is_private = True
        self._holdings.close_readable()

    def give_up(self) -> None:
        """Ends the old mapping: now nobody can write to the segment. Blocks for 0.04 s per GiB; it
        goes piece by piece, so that other threads can map memory meanwhile."""
        aside, self._aside = self._aside, None
        _unmap(aside, self.size_bytes)


def find_arena(arenas: Iterable[Arena], contents: object) -> Arena | None:
    """The arena whose tensors these are."""
    if not isinstance(contents, Mapping) or not contents:
        return None
    return next((arena for arena in arenas if arena.holds(contents)), None)


def _place(name: str, tensor: torch.Tensor) -> Place:
    address = tensor.data_ptr() if tensor.numel() else 0
    return Place(name, tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), address)


@cache
def _system() -> ctypes.CDLL:
    system = ctypes.CDLL(None, use_errno=True)
    system.mmap.restype = system.mremap.restype = ctypes.c_void_p
    system.mmap.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    )
    system.mremap.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_void_p,
    )
    system.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return system


def _map_over(address: int, size_bytes: int, sharing: int, descriptor: int) -> None:
    flags = sharing | _MAP_FIXED | _MAP_NORESERVE
    found = _system().mmap(address, size_bytes, _PROTECTION, flags, descriptor, 0)
    if found == _FAILED:
        raise _exhausted(size_bytes, os.strerror(ctypes.get_errno()))


def _move_aside(address: int, size_bytes: int) -> int | None:
    """Moves the pages of a mapping to other addresses; the mapping stays, and finds its pages
    again when it is used. None before Linux 5.13."""
    flags = _MREMAP_MAYMOVE | _MREMAP_DONTUNMAP
    found = _system().mremap(address, size_bytes, size_bytes, flags, None)
    return None if found == _FAILED else int(found)


def _unmap(address: int | None, size_bytes: int) -> None:
    if address is not None:
        for start in range(0, size_bytes, _UNMAP_BYTES):
            _system().munmap(address + start, min(_UNMAP_BYTES, size_bytes - start))


def _exhausted(size_bytes: int, reason: str | None) -> OutOfCapacity:
    return OutOfCapacity(
        f"{size_bytes} bytes cannot be mapped: {reason}.",
        hint="See `ulimit -v` and vm.max_map_count.",
    )
