import os
import threading

import blake3
import pytest
import xxhash

from tensorcast.movers.memory.digesting import AHEAD_BYTES, WATCHED_BYTES_MIN, Digest, Digester
from tensorcast.movers.memory.memfd import create_segment

MIB = 1 << 20
SIZE = WATCHED_BYTES_MIN + 5
AHEAD = AHEAD_BYTES // MIB
"""Chunks whose pages may be there before they are written."""


@pytest.fixture
def segment():
    made = create_segment("segment-test", WATCHED_BYTES_MIN + 2 * MIB, is_touched=False)
    yield made
    made.close()


def content(seed: int = 0) -> bytes:
    return blake3.blake3(bytes([seed])).digest(length=SIZE)


def expected(data: bytes) -> list[Digest]:
    chunks = [data[at : at + MIB] for at in range(0, len(data), MIB)]
    return [Digest(xxhash.xxh3_64_digest(c), blake3.blake3(c).digest()) for c in chunks]


def test_every_chunk_is_digested_as_it_is(segment):
    os.pwrite(segment.fd, content(), 0)
    assert Digester(segment, SIZE).finish() == expected(content())
    assert Digester(segment, 0).finish() == []
    assert Digester(segment, 7).finish() == expected(content()[:7])


def watched(digester: Digester, chunks: int) -> None:
    """Waits until so many chunks were digested while they were written."""
    pause = threading.Event()
    for _ in range(2000):
        if len(digester._early) >= chunks:
            return
        pause.wait(0.005)
    raise AssertionError(len(digester._early))


def test_chunks_are_digested_behind_the_writer(segment):
    digester = Digester(segment, SIZE)
    digester.watch()
    os.pwrite(segment.fd, content()[: (AHEAD + 5) * MIB], 0)
    watched(digester, 5)
    assert sorted(digester._early) == [0, 1, 2, 3, 4]
    os.pwrite(segment.fd, content()[(AHEAD + 5) * MIB :], (AHEAD + 5) * MIB)
    assert digester.finish() == expected(content())


def test_what_changes_after_its_digest_is_digested_again(segment):
    digester = Digester(segment, SIZE)
    digester.watch()
    os.pwrite(segment.fd, content(), 0)
    watched(digester, 10)
    os.pwrite(segment.fd, b"changed", 3 * MIB + 100)
    changed = bytearray(content())
    changed[3 * MIB + 100 : 3 * MIB + 107] = b"changed"
    assert digester.finish() == expected(bytes(changed))


def test_a_watch_that_is_stopped_leaves_no_thread(segment):
    before = threading.active_count()
    digester = Digester(segment, SIZE)
    digester.watch()
    digester.stop()
    digester.stop()
    assert threading.active_count() == before
    Digester(segment, 100).watch()  # too small to be worth it
    assert threading.active_count() == before
