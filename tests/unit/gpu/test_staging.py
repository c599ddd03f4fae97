"""Bytes through pinned buffers: exact, in order, and never before a buffer is free."""

from __future__ import annotations

import random

import pytest

from tensorcast.gpu.fake import FakeGpu
from tensorcast.gpu.staging import Piece, Staging

SIZES = (1, 4095, 4096, 4097, 0, 20000)


@pytest.fixture
def gpu():
    gpu = FakeGpu()
    yield gpu
    gpu.close()


@pytest.mark.parametrize("buffers", [1, 2, 4])
def test_what_goes_in_comes_out(gpu, buffers):
    contents = [random.Random(size).randbytes(size) for size in SIZES]
    addresses = [gpu.allocate(size) for size in SIZES]

    def pieces(move_of):
        return [
            Piece(address, size, move_of(n))
            for n, (address, size) in enumerate(zip(addresses, SIZES, strict=True))
        ]

    def filler(n):
        def move(part, start):
            part[:] = contents[n][start : start + len(part)]

        return move

    found = [bytearray(size) for size in SIZES]

    def taker(n):
        def move(part, start):
            found[n][start : start + len(part)] = part

        return move

    with Staging(gpu, buffers=buffers, buffer_bytes=4096) as staging:
        staging.fill(pieces(filler))
        staging.drain(pieces(taker))
    assert found == contents
    assert not gpu._pinned


def test_an_error_leaves_no_copy_under_way(gpu):
    address = gpu.allocate(1 << 16)

    def move(part, start):
        if start >= 8192:
            raise OSError("the disk is gone")

    staging = Staging(gpu, buffer_bytes=4096)
    for work in (staging.fill, staging.drain):
        with pytest.raises(OSError, match="disk"):
            work([Piece(address, 1 << 16, move)])
    staging.close()
    staging.close()
    gpu.free(address)
