"""Bytes between a device and memory that is not pinned, through a few pinned buffers.

Filling (or emptying) one buffer and the copies of the others go on at the same time, on a stream of
its own: nothing that the application has given to the device waits for it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Final, NamedTuple, Self

from tensorcast.gpu.port import CudaEvent, CudaStream, Gpu

BUFFERS: Final = 4
BUFFER_BYTES: Final = 4 << 20


class Piece(NamedTuple):
    """Bytes at an address of the device. `move` is called with a part of pinned memory and how many
    bytes of the piece lie before that part: to fill it, or to take what is in it."""

    address: int
    size_bytes: int
    move: Callable[[memoryview, int], None]


class _Step(NamedTuple):
    piece: Piece
    start: int
    size_bytes: int


class Staging:
    """Owns its buffers until the end of the context. For one use at a time; others wait."""

    def __init__(
        self, gpu: Gpu, *, buffers: int = BUFFERS, buffer_bytes: int = BUFFER_BYTES
    ) -> None:
        self._gpu = gpu
        self._buffer_bytes = buffer_bytes
        self._lock = threading.Lock()
        self.cuda_stream: CudaStream = gpu.open_stream()
        self._buffers: list[memoryview] = []
        try:
            for _ in range(buffers):
                self._buffers.append(gpu.pin(buffer_bytes))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Gives the buffers back. Safe to repeat."""
        buffers, self._buffers = self._buffers, []
        for buffer in buffers:
            self._gpu.unpin(buffer)

    def fill(self, pieces: Iterable[Piece]) -> None:
        """Fills memory of the device. When it returns or raises, no copy is under way."""
        with self._lock:
            free = deque[tuple[memoryview, CudaEvent | None]]((b, None) for b in self._buffers)
            try:
                for step in self._cut(pieces):
                    buffer, event = free.popleft()
                    free.append((buffer, None))
                    if event is not None:
                        event.synchronize()
                    part = buffer[: step.size_bytes]
                    step.piece.move(part, step.start)
                    self.cuda_stream.copy_in(step.piece.address + step.start, part)
                    free[-1] = buffer, self.cuda_stream.record()
            finally:
                self.cuda_stream.record().synchronize()

    def drain(self, pieces: Iterable[Piece]) -> None:
        """Takes what is in memory of the device, in order. When it returns or raises, no copy is
        under way."""
        with self._lock:
            free = deque(self._buffers)
            flying: deque[tuple[_Step, memoryview, CudaEvent]] = deque()
            try:
                for step in self._cut(pieces):
                    if not free:
                        free.append(self._land(*flying.popleft()))
                    buffer = free.popleft()
                    part = buffer[: step.size_bytes]
                    self.cuda_stream.copy_out(part, step.piece.address + step.start)
                    flying.append((step, buffer, self.cuda_stream.record()))
                while flying:
                    self._land(*flying.popleft())
            finally:
                self.cuda_stream.record().synchronize()

    def _land(self, step: _Step, buffer: memoryview, event: CudaEvent) -> memoryview:
        event.synchronize()
        step.piece.move(buffer[: step.size_bytes], step.start)
        return buffer

    def _cut(self, pieces: Iterable[Piece]) -> Iterator[_Step]:
        for piece in pieces:
            for start in range(0, piece.size_bytes, self._buffer_bytes):
                yield _Step(piece, start, min(self._buffer_bytes, piece.size_bytes - start))
