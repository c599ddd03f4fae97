"""Facts about the machine."""

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


@pytest.mark.parametrize(("size", "text"), [(3 * GIB // 2, "1.5 GiB"), (12 << 20, "12 MiB")])
def test_format_bytes(size, text):
    assert format_bytes(size) == text
