"""A GPU of ordinary memory, for machines that have none: published for tests.

It keeps the rules of a real one and says which was broken, where a real one would corrupt memory:
use after free, memory that is freed while others read it, copies of pageable memory, two streams
that touch the same bytes in no order, a buffer that is given back before its copy is done. Copies
are really late: nothing moves before somebody waits, so a missing wait shows as wrong bytes.

Allocations are memfds, so that a handle works between processes: it names the exporter's process
and descriptor, and a reader holds a lock by which the exporter knows of it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from tensorcast.gpu.port import (
    GRANULE_BYTES,
    HANDLE_BYTES,
    CudaEvent,
    Properties,
    round_up,
)
from tensorcast.schema.errors import Corrupt, OutOfCapacity, Unavailable
from tensorcast.storage.memory import address_of, view_at

PAGE_BYTES: Final = 4096
_HANDLE: Final = struct.Struct(">4sIIQQ16s")
_MAGIC: Final = b"FAKE"


class MisuseError(AssertionError):
    """A rule of the device was broken: a fault of the program, not of the machine."""


class _Span(NamedTuple):
    """Bytes that a copy touches."""

    start: int
    stop: int
    is_written: bool

    def collides(self, other: _Span) -> bool:
        overlaps = self.start < other.stop and other.start < self.stop
        return overlaps and (self.is_written or other.is_written)


class _Copy(NamedTuple):
    spans: tuple[_Span, ...]
    carry_out: Callable[[], None]


class _Block:
    """An allocation, an adopted one, or pinned memory: mapped from `start` on."""

    def __init__(self, fd: int, size_bytes: int) -> None:
        self.fd = fd
        self.size_bytes = size_bytes
        self.mapping = mmap.mmap(fd, size_bytes)
        self.start = address_of(memoryview(self.mapping))

    def close(self) -> None:
        # The mapping ends with its last view.
        os.close(self.fd)


class FakeEvent:
    """Satisfies `CudaEvent`. Each question lets the device carry out one copy."""

    def __init__(self, stream: FakeStream, number: int) -> None:
        self.stream = stream
        self.number = number

    def is_done(self) -> bool:
        """As promised by the port."""
        return self.stream.advance(self.number, copies_max=1)

    def synchronize(self) -> None:
        """As promised by the port."""
        self.stream.advance(self.number)


class FakeStream:
    """Satisfies `CudaStream`. `done` counts the copies that were carried out, `given` all."""

    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu = gpu
        self.given = 0
        self.done = 0
        self.waiting: dict[int, _Copy] = {}
        self._after: dict[int, list[FakeEvent]] = {}
        self.known: dict[FakeStream, int] = {}

    def copy_in(self, target: int, source: memoryview) -> None:
        """As promised by the port."""
        address, size = address_of(source), source.nbytes
        self._gpu.check_pinned(address, size)
        self._gpu.check_device(target, size)
        self._give(target, address, size)

    def copy_out(self, target: memoryview, source: int) -> None:
        """As promised by the port."""
        address, size = address_of(target), target.nbytes
        self._gpu.check_pinned(address, size)
        self._gpu.check_device(source, size)
        self._give(address, source, size)

    def copy_within(self, target: int, source: int, size_bytes: int) -> None:
        """As promised by the port."""
        self._gpu.check_device(target, size_bytes)
        self._gpu.check_device(source, size_bytes)
        self._give(target, source, size_bytes)

    def _give(self, target: int, source: int, size: int) -> None:
        spans = (_Span(source, source + size, False), _Span(target, target + size, True))

        def carry_out() -> None:
            view_at(target, size)[:] = bytes(view_at(source, size))

        with self._gpu.lock:
            self._gpu.check_order(self, spans)
            self.waiting[self.given] = _Copy(spans, carry_out)
            self.given += 1

    def record(self) -> FakeEvent:
        """As promised by the port."""
        with self._gpu.lock:
            return FakeEvent(self, self.given)

    def wait_for(self, event: CudaEvent) -> None:
        """As promised by the port."""
        assert isinstance(event, FakeEvent), "made by this device"
        with self._gpu.lock:
            self._after.setdefault(self.given, []).append(event)
            for stream, number in ((event.stream, event.number), *event.stream.known.items()):
                self.known[stream] = max(self.known.get(stream, 0), number)

    def advance(self, number: int, copies_max: int | None = None) -> bool:
        """Carries out the copies before `number`, so many of them; whether all are done."""
        with self._gpu.lock:
            left = number - self.done if copies_max is None else copies_max
            while self.done < number and left > 0:
                for event in self._after.pop(self.done, ()):
                    event.stream.advance(event.number)
                self.waiting.pop(self.done).carry_out()
                self.done += 1
                left -= 1
            return self.done >= number


class FakeGpu:
    """Satisfies `Gpu`: one device as one process sees it. Two of them stand for two processes."""

    def __init__(
        self, index: int = 0, total_bytes: int = 256 << 20, *, dmabuf: bool = False
    ) -> None:
        self._properties = Properties(
            index=index,
            name="fake GPU",
            pci=f"0000:{index + 1:02x}:00.0",
            total_bytes=total_bytes,
            has_dmabuf=dmabuf,
        )
        self.lock = threading.RLock()
        self._own = os.urandom(16)
        self._blocks: dict[int, _Block] = {}
        self._adopted: dict[int, _Block] = {}
        self._pinned: dict[int, _Block] = {}
        self._streams: list[FakeStream] = []

    @property
    def properties(self) -> Properties:
        return self._properties

    @property
    def used_bytes(self) -> int:
        """What is allocated."""
        return sum(block.size_bytes for block in self._blocks.values())

    # ---- memory ----------------------------------------------------------------------------

    def allocate(self, size_bytes: int) -> int:
        """As promised by the port."""
        size = round_up(size_bytes)
        with self.lock:
            if self.used_bytes + size > self._properties.total_bytes:
                raise OutOfCapacity(
                    f"GPU {self._properties.index} has no {size_bytes} bytes of memory left."
                )
            block = _new_block("fake-gpu", size)
            self._blocks[block.start] = block
            return block.start

    def free(self, address: int) -> None:
        """As promised by the port."""
        with self.lock:
            block = self._take(self._blocks, address, "free")
            if _is_locked(block.fd):
                self._blocks[address] = block
                raise MisuseError("memory is freed that another process still uses")
            block.close()

    def pin(self, size_bytes: int) -> memoryview:
        """As promised by the port."""
        block = _new_block("fake-pinned", max(PAGE_BYTES, size_bytes))
        with self.lock:
            self._pinned[block.start] = block
        return memoryview(block.mapping)[:size_bytes]

    def unpin(self, memory: memoryview) -> None:
        """As promised by the port."""
        with self.lock:
            self._take(self._pinned, address_of(memory), "unpin").close()

    def _take(self, blocks: dict[int, _Block], address: int, verb: str) -> _Block:
        block = blocks.get(address)
        if block is None:
            raise MisuseError(f"{verb} of what is not there (any more)")
        self._check_idle(block, verb)
        return blocks.pop(address)

    def _check_idle(self, block: _Block, verb: str) -> None:
        whole = _Span(block.start, block.start + block.size_bytes, True)
        for stream in self._streams:
            for copy in stream.waiting.values():
                if any(whole.collides(span) for span in copy.spans):
                    raise MisuseError(f"{verb} of memory that a copy has not done with")

    # ---- sharing ---------------------------------------------------------------------------

    def export(self, address: int) -> bytes:
        """As promised by the port."""
        with self.lock:
            block = self._blocks.get(address)
        if block is None:
            raise MisuseError("export of memory that is not allocated")
        inode = os.fstat(block.fd).st_ino
        packed = _HANDLE.pack(_MAGIC, os.getpid(), block.fd, inode, block.size_bytes, self._own)
        return packed.ljust(HANDLE_BYTES, b"\0")

    def adopt(self, handle: bytes) -> int:
        """As promised by the port."""
        if len(handle) != HANDLE_BYTES or not handle.startswith(_MAGIC):
            raise Corrupt("This is no handle of a GPU's memory.")
        _, pid, number, inode, size, own = _HANDLE.unpack_from(handle)
        if own == self._own:
            raise MisuseError("a process opens its own handle, which CUDA refuses")
        fd = _open_of(pid, number, inode)
        fcntl.flock(fd, fcntl.LOCK_SH)
        block = _Block(fd, size)
        with self.lock:
            self._adopted[block.start] = block
        return block.start

    def release(self, address: int) -> None:
        """As promised by the port."""
        with self.lock:
            self._take(self._adopted, address, "release").close()

    def open_dmabuf(self, address: int, size_bytes: int) -> int:
        """As promised by the port."""
        if not self._properties.has_dmabuf:
            raise Unavailable(f"GPU {self._properties.index} gives no dmabuf.")
        if address % PAGE_BYTES or size_bytes % PAGE_BYTES:
            raise MisuseError("a dmabuf is of whole pages")
        with self.lock:
            block = self._blocks.get(address)
            if block is None or size_bytes > block.size_bytes:
                raise MisuseError("a dmabuf of memory that is not allocated")
            return os.dup(block.fd)

    # ---- copies ----------------------------------------------------------------------------

    def open_stream(self) -> FakeStream:
        """As promised by the port."""
        stream = FakeStream(self)
        with self.lock:
            self._streams.append(stream)
        return stream

    def check_device(self, address: int, size_bytes: int) -> None:
        """Raises MisuseError for bytes that are not all in one live piece of the device."""
        with self.lock:
            if not _is_within(
                (*self._blocks.values(), *self._adopted.values()), address, size_bytes
            ):
                raise MisuseError("a copy touches memory of the device that is not allocated")

    def check_pinned(self, address: int, size_bytes: int) -> None:
        """Raises MisuseError for memory of the host that is not pinned."""
        with self.lock:
            if not _is_within((*self._pinned.values(),), address, size_bytes):
                raise MisuseError("a copy touches memory of the host that is not pinned")

    def check_order(self, giver: FakeStream, spans: Sequence[_Span]) -> None:
        """Raises MisuseError when a copy of another stream, which this one has not waited for,
        touches the same bytes."""
        for stream in self._streams:
            if stream is giver:
                continue
            for number, copy in stream.waiting.items():
                is_ordered = number < giver.known.get(stream, 0)
                if not is_ordered and any(a.collides(b) for a in spans for b in copy.spans):
                    raise MisuseError("two streams touch the same bytes in no order")

    def close(self) -> None:
        """As promised by the port."""
        with self.lock:
            for blocks in (self._blocks, self._adopted, self._pinned):
                for block in blocks.values():
                    block.close()
                blocks.clear()


def _new_block(name: str, size_bytes: int) -> _Block:
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    os.ftruncate(fd, size_bytes)
    return _Block(fd, size_bytes)


def _is_within(blocks: Sequence[_Block], address: int, size_bytes: int) -> bool:
    return any(
        block.start <= address and address + size_bytes <= block.start + block.size_bytes
        for block in blocks
    )


def _open_of(pid: int, number: int, inode: int) -> int:
    """The exporter's memory. Raises Unavailable when it is not there any more."""
    try:
        fd = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise Unavailable(f"The exporter of a GPU's memory has gone: {error.strerror}.") from error
    if os.fstat(fd).st_ino != inode:
        os.close(fd)
        raise Unavailable("The exporter of a GPU's memory has freed it.")
    return fd


def _is_locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False


assert GRANULE_BYTES % PAGE_BYTES == 0
