"""What this machine does without us: bare loops to hold the trials of `tcctl bench` against.

Each moves the same number of bytes once and answers the seconds. Memory that they write was
touched before, as far as that is the case for what they are compared with.
"""

from __future__ import annotations

import mmap
import os
import socket
import threading
import time
from pathlib import Path

PIECE_BYTES = 8 << 20
SEND_BYTES = 4 << 20
READ_BYTES = 512 << 10
ROUND_BYTES = 2 << 20


def time_write(source: memoryview) -> float:
    """`pwrite` into fresh memory: what a put cannot do without."""
    fd = os.memfd_create("baseline")
    try:
        begun = time.perf_counter()
        written = 0
        while written < len(source):
            written += os.pwrite(fd, source[written:], written)
        return time.perf_counter() - begun
    finally:
        os.close(fd)


def time_copy(source: memoryview, target: memoryview) -> float:
    """A copy from memory to memory. Modifies the target."""
    begun = time.perf_counter()
    target[:] = source
    return time.perf_counter() - begun


def time_send(source: memoryview, target: memoryview) -> float:
    """`sendfile` out of a memfd into memory, over TCP on the loopback interface. Modifies the
    target."""
    fd = os.memfd_create("baseline")
    try:
        time_fill(fd, source)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            sender = threading.Thread(
                target=_send, args=(listening.getsockname(), fd, len(source)), daemon=True
            )
            sender.start()
            connected, _ = listening.accept()
            with connected:
                begun = time.perf_counter()
                _receive(connected, target)
                took_s = time.perf_counter() - begun
            sender.join()
        return took_s
    finally:
        os.close(fd)


def time_fill(fd: int, source: memoryview) -> None:
    """Writes all of it to a descriptor."""
    written = 0
    while written < len(source):
        written += os.pwrite(fd, source[written:], written)


def _send(address: tuple[str, int], fd: int, size_bytes: int) -> None:
    with socket.create_connection(address) as connected:
        at = 0
        while at < size_bytes:
            at += os.sendfile(connected.fileno(), fd, at, min(size_bytes - at, SEND_BYTES))


def _receive(connected: socket.socket, target: memoryview) -> None:
    at = 0
    while at < len(target):
        got = connected.recv_into(target[at : at + READ_BYTES])
        if not got:
            raise ConnectionResetError("the sender of the baseline has gone")
        at += got


def time_read(path: Path, threads: int = 2) -> float:
    """`preadv` of a file into fresh memory, by some threads."""
    size_bytes = path.stat().st_size
    room = max(ROUND_BYTES, -(-size_bytes // ROUND_BYTES) * ROUND_BYTES)
    with path.open("rb", buffering=0) as file, mmap.mmap(-1, room) as memory:
        begun = time.perf_counter()
        memory.madvise(mmap.MADV_HUGEPAGE)
        view = memoryview(memory)
        places = range(0, size_bytes, PIECE_BYTES)
        workers = [
            threading.Thread(target=_read, args=(file.fileno(), view, places[n::threads]))
            for n in range(threads)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        took_s = time.perf_counter() - begun
        view.release()
    return took_s


def _read(fd: int, memory: memoryview, places: range) -> None:
    for at in places:
        with memory[at : at + PIECE_BYTES] as part:
            os.preadv(fd, [part], at)
