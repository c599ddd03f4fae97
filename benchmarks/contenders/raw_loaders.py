"""Bare reads of a safetensors file into one piece of memory: what the disk and the kernel allow."""

from __future__ import annotations

import mmap
import os
import threading
import warnings

import torch

from contenders.loads import PIECE, read_head

HUGE = 2 << 20
_MAP_POPULATE = 0x8000
DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "U8": torch.uint8}

warnings.filterwarnings("ignore", "The given buffer is not writable")


def views_of(path: str, memory) -> dict[str, torch.Tensor]:
    """The tensors of the file, as views of its bytes in memory."""
    begin, head = read_head(path)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    found = {}
    for name, about in head.items():
        if name != "__metadata__":
            start, stop = about["data_offsets"]
            part = whole[begin + start : begin + stop]
            found[name] = part.view(DTYPES[about["dtype"]]).view(about["shape"])
    return found


def read_in_threads(path: str, flags: int, threads: int) -> dict[str, torch.Tensor]:
    """`preadv` of 8 MiB pieces into one anonymous mapping of huge pages."""
    fd = os.open(path, os.O_RDONLY | flags)
    size = os.fstat(fd).st_size
    room = -(-size // HUGE) * HUGE
    memory = mmap.mmap(-1, room, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    view = memoryview(memory)
    places = iter(range(0, size, PIECE))
    lock = threading.Lock()

    def work():
        while True:
            with lock:
                at = next(places, None)
            if at is None:
                return
            end = min(at + PIECE, room)
            while at < min(end, size):
                got = os.preadv(fd, [view[at:end]], at)
                if got <= 0:
                    return
                at += got

    others = [threading.Thread(target=work) for _ in range(threads - 1)]
    for each in others:
        each.start()
    work()
    for each in others:
        each.join()
    os.close(fd)
    return views_of(path, memory)


def preadv_2(path: str) -> dict[str, torch.Tensor]:
    """Two threads through the page cache."""
    return read_in_threads(path, 0, 2)


def direct_1(path: str) -> dict[str, torch.Tensor]:
    """One thread past the page cache."""
    return read_in_threads(path, os.O_DIRECT, 1)


def direct_4(path: str) -> dict[str, torch.Tensor]:
    """Four threads past the page cache."""
    return read_in_threads(path, os.O_DIRECT, 4)


def mapped(path: str) -> dict[str, torch.Tensor]:
    """A populated mapping of the page cache."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        flags = mmap.MAP_SHARED | _MAP_POPULATE
        memory = mmap.mmap(file.fileno(), size, flags=flags, prot=mmap.PROT_READ)
    return views_of(path, memory)
