"""Loading a checkpoint from disk: each load in a fresh fork of this worker, after the imports.

Timed, in the fork: from the path to all tensors, with a byte of every page read, so that loaders
that map do not win by leaving the work for later. The bytes of all tensors are digested after, in
the fork too, and compared with those of the file. CPU is that of the fork while it was timed.

A loader is a function of a path that answers tensors by name, `module:function` in the options.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import mmap
import os
import struct
import sys
import time
from pathlib import Path

import torch
import xxhash

from contenders.blocks import load_store
from harness.memory import MIB, cut
from harness.processes import memory_bytes

PAGE = 4096
PIECE = 8 << 20
COLD_SHARE_MAX = 0.01
HEAD = struct.Struct("<Q")


def make_checkpoint(path: Path, size: int, count: int) -> None:
    """A safetensors file of bf16 tensors with noise in it, written whole or not at all."""
    head, at = {}, 0
    for n, (_, each) in enumerate(cut(size, count)):
        where = [at, at + each]
        head[f"layers.{n:03}.weight"] = {
            "dtype": "BF16",
            "shape": [each // 2],
            "data_offsets": where,
        }
        at += each
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    draft = path.with_suffix(f".{os.getpid()}")
    with draft.open("wb") as file:
        file.write(HEAD.pack(len(text)) + text)
        noise = os.urandom(16 * MIB)
        for first in range(0, size, len(noise)):
            file.write(noise[: size - first])
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)


def read_head(path: str) -> tuple[int, dict[str, dict]]:
    """Where the data begins, and the header."""
    with open(path, "rb") as file:
        (size,) = HEAD.unpack(file.read(HEAD.size))
        return HEAD.size + size, json.loads(file.read(size))


def warm(path: str) -> None:
    """Brings the file into the page cache."""
    with open(path, "rb", buffering=0) as file:
        piece = bytearray(PIECE)
        while file.readinto(piece):
            pass


def cool(path: str) -> None:
    """Takes the file out of the page cache. Raises RuntimeError when it stays."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if cached_share(file.fileno()) > COLD_SHARE_MAX:
            raise RuntimeError("the file stays in the page cache")


def cached_share(fd: int) -> float:
    """How much of a file is in the page cache, from 0 to 1."""
    size = os.fstat(fd).st_size
    pages = -(-size // PAGE)
    found = (ctypes.c_ubyte * pages)()
    libc = ctypes.CDLL(None, use_errno=True)
    with mmap.mmap(fd, size, prot=mmap.PROT_READ | mmap.PROT_WRITE, flags=mmap.MAP_PRIVATE) as m:
        first = ctypes.c_char.from_buffer(m)
        code = libc.mincore(ctypes.byref(first), ctypes.c_size_t(size), found)
        del first
    if code:
        raise OSError(ctypes.get_errno(), "mincore")
    return sum(bytes(found)) / pages


def touch(tensors) -> None:
    """Reads a byte of every page."""
    for tensor in tensors.values():
        tensor.reshape(-1).view(torch.uint8)[::PAGE].sum()


def digest(tensors) -> str:
    """Of names and bytes of all tensors."""
    found = xxhash.xxh3_128()
    for name in sorted(tensors):
        found.update(name.encode())
        found.update(memoryview(tensors[name].reshape(-1).view(torch.uint8).numpy()))
    return found.hexdigest()


def digest_file(path: str) -> str:
    """The same, of the file, read by nothing but Python."""
    begin, head = read_head(path)
    found = xxhash.xxh3_128()
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        for name in sorted(set(head) - {"__metadata__"}):
            start, stop = head[name]["data_offsets"]
            found.update(name.encode())
            found.update(data[begin + start : begin + stop])
    return found.hexdigest()


class Loader:
    """The worker."""

    def start(self, options):
        about = next(iter(options["works"].values()))
        folder = Path(options["cache"]) / "data"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"checkpoint-{about['size'] >> 20}-{about['count']}.safetensors"
        if not path.exists():
            make_checkpoint(path, about["size"], about["count"])
        self.path = str(path)
        self.options = options
        self.load = load_store(options["loader"])
        self.expected = digest_file(self.path)
        self.import_all()
        return {"version": getattr(self.load, "version", "")}

    def import_all(self):
        """Imports here what a load imports on its way, so that no fork has to."""
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(Exception):
                self.load(self.path)
            os.write(writing, "\n".join(sorted(sys.modules)).encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            names = pipe.read().split("\n")
        os.waitpid(pid, 0)
        for name in names:
            if name not in sys.modules:
                with contextlib.suppress(Exception):
                    importlib.import_module(name)

    def prepare(self, work, turn):
        gc.collect()
        (cool if work == "cold" else warm)(self.path)

    def run(self, work, turn):
        """Forks; the answer comes through a pipe, the digest later."""
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            self.measure(writing)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            text = pipe.read()
        os.waitpid(pid, 0)
        answer = json.loads(text or '{"error": "the fork has died"}')
        if "error" in answer:
            raise RuntimeError(answer["error"])
        self.found = answer.pop("digest")
        return answer

    def measure(self, writing):
        """In the fork; never returns."""
        try:
            own = memory_bytes(os.getpid(), "RssAnon")
            cpu, begun = time.process_time(), time.perf_counter()
            tensors = self.load(self.path)
            before_touch = time.perf_counter() - begun
            touch(tensors)
            answer = {"seconds": time.perf_counter() - begun, "cpu_s": time.process_time() - cpu}
            gained = memory_bytes(os.getpid(), "RssAnon") - own
            answer |= {"own_mib": gained / MIB, "ms_before_touch": before_touch * 1e3}
            answer["digest"] = digest(tensors)
        except BaseException as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)

    def check(self, work, turn):
        if self.found != self.expected:
            raise ValueError("other bytes were loaded than the file has")
