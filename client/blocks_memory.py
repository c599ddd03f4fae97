"""Slabs of the local mover, mapped once, and views of blocks in them.

A slab is mapped twice when need be: to read, and to write slots that the mover has lent. A view
lies in the mapping for reading: nothing is copied, and whoever writes through it (torch lets one)
is stopped by the kernel. The views of one lookup share a holder; when the last of them is gone, the
mover sees it, or is told with the next request.

What a process reads, the mover knows by its connections; they are not a forked child's. So a child
has no slabs: where its parent's were there is nothing, and the kernel stops who looks there.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import weakref
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Final, cast

from tensorcast.client.blocks_board import Board, Pins
from tensorcast.client.blocks_pieces import Pieces, Place
from tensorcast.client.blocks_ring import PutRing, RecentKeys
from tensorcast.schema.block_wire import NOWHERE, OFFSET_BITS
from tensorcast.schema.errors import OutOfCapacity
from tensorcast.storage.memory import HUGE_BYTES

ADDRESS_BITS: Final = 47
OFFSET_MASK: Final = (1 << OFFSET_BITS) - 1
MAP_POPULATE: Final = getattr(mmap, "MAP_POPULATE", 0x8000)
MAP_FIXED: Final = 0x10
MAP_NORESERVE: Final = 0x4000
PROT_NONE: Final = 0
WITHOUT_GIL_BYTES: Final = 256 << 10
_VIEWS = {memoryview}
_SIZE = attrgetter("nbytes")
_ABSENT: Final = int.from_bytes(NOWHERE[:8], "little")

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_Everything = ctypes.c_ubyte * (1 << ADDRESS_BITS)


class Holder(_Everything):  # type: ignore[misc, valid-type]  # ctypes makes its types at run time
    """All memory, as one array: what a view of some of it holds on to. `keep` is what must live
    as long as the view."""

    keep: object


def whole_memory(keep: object = None) -> memoryview:
    """The process' memory, to be sliced by address; a slice keeps `keep` alive."""
    holder = Holder.from_address(0)
    holder.keep = keep
    return memoryview(holder).cast("B")


EVERYTHING: Final = whole_memory()


def copy_block(target: memoryview, source: memoryview) -> None:
    """Copies a block of WITHOUT_GIL_BYTES or more: without the GIL, so that other threads of the
    application go on. (A smaller one is quicker copied than the GIL is had back.)"""
    import numpy as np

    np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))


def write_blocks(addresses: Sequence[int], sources: Sequence[Place]) -> None:
    """Copies blocks to where they belong in this process' memory."""
    everything = EVERYTHING
    if set(map(type, sources)) == _VIEWS and max(map(_SIZE, sources)) < WITHOUT_GIL_BYTES:
        for address, view in zip(addresses, cast("Sequence[memoryview]", sources), strict=True):
            everything[address : address + view.nbytes] = view
        return
    for address, source in zip(addresses, sources, strict=True):
        size = source.nbytes
        if isinstance(source, Pieces):
            source.copy_to(everything[address : address + size])
        elif size < WITHOUT_GIL_BYTES:
            everything[address : address + size] = source
        else:
            copy_block(everything[address : address + size], source)


def _map_memory(
    address: int | None, size_bytes: int, protection: int, flags: int, descriptor: int
) -> int:
    """Where it was mapped. Raises OutOfCapacity."""
    found = _libc.mmap(address, size_bytes, protection, flags, descriptor, 0)
    if found is None or found == ctypes.c_void_p(-1).value:
        raise OutOfCapacity(
            f"{size_bytes} bytes of blocks cannot be mapped: {os.strerror(ctypes.get_errno())}.",
            hint="See `ulimit -v` and vm.max_map_count.",
        )
    return int(found)


class _Slab:
    def __init__(self, descriptors: Sequence[int], size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._descriptors = descriptors
        self._end = weakref.finalize(self, _close_all, list(descriptors))
        self._end.atexit = False  # views may be used until the very end
        self.readable = 0
        self.writable = 0
        _mapped.add(self)

    def map_to_read(self) -> int:
        self.readable = self.readable or self._map(self._descriptors[0], mmap.PROT_READ)
        return self.readable

    def map_to_write(self) -> int:
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        self.writable = self.writable or self._map(self._descriptors[1], protection)
        return self.writable

    def _map(self, descriptor: int, protection: int) -> int:
        reserved_bytes = self._size_bytes + HUGE_BYTES
        nothing = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        reserved = _map_memory(None, reserved_bytes, PROT_NONE, nothing, -1)
        weakref.finalize(self, _libc.munmap, reserved, reserved_bytes).atexit = False
        # From a huge page on, or the mover's huge pages would be mapped as 512 small ones each.
        address = reserved + -reserved % HUGE_BYTES
        # With its pages: no fault may come later.
        flags = mmap.MAP_SHARED | MAP_POPULATE | MAP_FIXED
        return _map_memory(address, self._size_bytes, protection, flags, descriptor)

    def abandon(self) -> None:
        """In a forked child: nothing can be read here any more. The addresses stay taken, so that
        nothing else is ever shown by a view that was inherited."""
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE
        for address in filter(None, (self.readable, self.writable)):
            _libc.mmap(address, self._size_bytes, PROT_NONE, flags, -1, 0)
        self._end()


_mapped: weakref.WeakSet[_Slab] = weakref.WeakSet()


def _abandon_all() -> None:
    for slab in list(_mapped):
        slab.abandon()


os.register_at_fork(after_in_child=_abandon_all)


def _close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


class Slabs:
    """The slabs of one life of a mover, for all connections to it. `has_ended`: the mover is gone;
    what is mapped stays, but says nothing about what there is. `used`: keys of blocks that
    were found on the board; any connection tells the mover. `rings`: those of the connections;
    `asked`: what was put by asking, which may not be on the board yet."""

    def __init__(self, life: str) -> None:
        self.life = life
        self.has_ended = False
        self.used: deque[Sequence[bytes]] = deque()
        self.rings: set[PutRing] = set()
        self.asked = RecentKeys()
        self._slabs: dict[int, _Slab] = {}
        self._readable: dict[int, int] = {}
        self._writable: dict[int, int] = {}
        self._board: Board | None = None

    def open_board(self, descriptor: int, size_bytes: int) -> Board:
        """The mover's board; mapped once. The descriptor stays the caller's."""
        if self._board is None:
            self._board = Board(descriptor, size_bytes)
        return self._board

    def tells_of(self, keys: Collection[bytes]) -> bool:
        """Whether this process has stored a block of these that may not be on the board yet."""
        if self.asked.has_any(keys):
            return True
        return any([ring.tells_of(keys) for ring in tuple(self.rings)])

    def take_used(self) -> list[bytes]:
        """The keys of `used`, to be told. For any thread."""
        found: list[bytes] = []
        with suppress(IndexError):
            while True:
                found += self.used.popleft()
        return found

    def has(self, number: int) -> bool:
        """Whether the slab is known."""
        return number in self._slabs

    def add(self, number: int, descriptors: Sequence[int], size_bytes: int) -> None:
        """A slab from what the mover handed over; takes the descriptors over."""
        self._slabs.setdefault(number, _Slab(descriptors, size_bytes))

    def addresses(self, places: Sequence[int], *, write: bool = False) -> list[int]:
        """Where these places lie in memory; 0 for a block that is not there. Raises KeyError with
        the number of a slab that is not known yet, OutOfCapacity."""
        bases = self._writable if write else self._readable
        if not places:
            return []
        low, high = min(places) >> OFFSET_BITS, max(places) >> OFFSET_BITS
        try:
            if low == high:  # as a rule: neighbours lie in one slab
                shift = bases[low] - (low << OFFSET_BITS)
                return [place + shift for place in places]
            return [
                bases[place >> OFFSET_BITS] + (place & OFFSET_MASK) if place != _ABSENT else 0
                for place in places
            ]
        except KeyError as error:
            number = int(error.args[0])
            if number == _ABSENT >> OFFSET_BITS:
                return [0] * len(places)
            slab = self._slabs[number]
            bases[number] = slab.map_to_write() if write else slab.map_to_read()
        return self.addresses(places, write=write)

    def keep(self, places: Sequence[int]) -> object:
        """What must live as long as somebody reads there: no slab but theirs."""
        slabs = self._slabs
        if places and (low := min(places) >> OFFSET_BITS) == max(places) >> OFFSET_BITS:
            return slabs.get(low)
        return [slabs.get(number) for number in {place >> OFFSET_BITS for place in places}]


class _Lease(weakref.ref[Holder]):
    """Tells when the last view of a lookup is gone."""

    __slots__ = ("tag",)
    tag: int


class Leases:
    """The lookups of a connection whose views are in use. Those with `pins` there end by
    themselves; the tags of the others are `released`. Knows nothing of the connection: it, and all
    slabs, may go while views are in use, and only then `endpoint` is closed."""

    def __init__(self, endpoint: socket.socket) -> None:
        self.pins: Pins | None = None
        self.released: deque[int] = deque()
        self._endpoint = endpoint
        self._process = os.getpid()
        self._live: dict[int, _Lease] = {}
        self._is_closing = False

    def hold(self, tag: int, keep: object) -> memoryview:
        """All memory, read-only: slices of it are the views of this lookup."""
        holder = Holder.from_address(0)
        holder.keep = (keep, self)
        lease = _Lease(holder, self._over)
        lease.tag = tag
        self._live[tag] = lease
        return memoryview(holder).cast("B").toreadonly()

    def end(self, tag: int) -> None:
        """What was found is not read any more. Called by any thread."""
        if self._process != os.getpid():  # the pins are the parent's
            return
        if self.pins is None or not self.pins.let_go(tag):
            self.released.append(tag)
        if self._is_closing and not self._live:
            self._endpoint.close()

    def close(self) -> None:
        """Closes the endpoint when no view is in use any more. Safe to repeat."""
        self._is_closing = True
        if not self._live:
            self._endpoint.close()

    def _over(self, lease: weakref.ref[Holder]) -> None:
        assert isinstance(lease, _Lease)
        self._live.pop(lease.tag, None)
        self.end(lease.tag)

    def __len__(self) -> int:
        return len(self._live)
