"""The bare loops move all the bytes that they say they move."""

from __future__ import annotations

import os
from pathlib import Path

from tensorcast.client.baselines import time_copy, time_read, time_send, time_write

SIZE = (9 << 20) + 7


def test_a_copy_and_a_transfer_arrive_whole() -> None:
    source = memoryview(os.urandom(SIZE))
    for move in (time_copy, time_send):
        target = memoryview(bytearray(SIZE))
        assert move(source, target) > 0
        assert target == source


def test_a_write_leaves_no_descriptor() -> None:
    before = len(os.listdir("/proc/self/fd"))
    assert time_write(memoryview(bytearray(SIZE))) > 0
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(SIZE))
    assert time_read(path) > 0
    (tmp_path / "empty").touch()
    assert time_read(tmp_path / "empty") > 0
