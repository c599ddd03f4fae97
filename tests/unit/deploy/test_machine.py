"""Facts about the machine."""

import ctypes
import resource
import subprocess
import sys
from collections.abc import Callable

import pytest

from tensorcast.deploy.machine import (
    format_bytes,
    parse_limit,
    parse_meminfo,
    suggest_dram_bytes,
)

GIB = 1024**3


def test_meminfo():
    text = "MemTotal:       1024 kB\nMemAvailable:    512 kB\n"
    assert parse_meminfo(text, "MemAvailable") == 512 * 1024
    assert parse_meminfo(text, "Missing") == 0


@pytest.mark.parametrize(("text", "limit"), [("max\n", None), ("4096\n", 4096)])
def test_cgroup_limit(text, limit):
    assert parse_limit(text) == limit


@pytest.mark.parametrize(
    ("total", "nodes", "expected"),
    [
        (1 * GIB, 1, GIB // 4),
        (24 * GIB, 1, 3 * GIB),
        (24 * GIB, 3, 3 * GIB),
        (24 * GIB, 12, GIB),
        (2048 * GIB, 1, 64 * GIB),
    ],
)
def test_suggested_dram(total, nodes, expected):
    assert suggest_dram_bytes(total, nodes=nodes) == expected


@pytest.mark.parametrize(
    ("size", "text"),
    [(3 * GIB // 2, "1.5 GiB"), (12 << 20, "12 MiB"), (65536, "64 KiB"), (7, "7 bytes")],
)
def test_format_bytes(size, text):
    assert format_bytes(size) == text


@pytest.mark.parametrize("has_right", [True, False])
def test_the_limit_of_locked_memory_is_the_hard_one_unless_none_holds(has_right: bool):
    libc = ctypes.CDLL(None)
    drop_from_bounds, lock_memory = 24, 14

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (4096, 65536))
        if not has_right:
            libc.prctl(drop_from_bounds, lock_memory)

    has_it = _lockable(lambda: resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))) == -1
    assert _lockable(limit) == (-1 if has_it and has_right else 65536)


def _lockable(before: Callable[[], object]) -> int:
    """As a process sees it that begins with this."""
    code = "from tensorcast.deploy.machine import lockable_bytes; print(lockable_bytes())"
    done = subprocess.run(
        [sys.executable, "-c", code], preexec_fn=before, capture_output=True, text=True, check=True
    )
    return int(done.stdout)
