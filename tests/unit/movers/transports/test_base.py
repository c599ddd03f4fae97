import threading

from tensorcast.movers.core.layout import Layout
from tensorcast.movers.transports.base import Bell, Lending
from tensorcast.schema.chunks import ChunkSet


def lend(held, bell):
    return Lending(fd=-1, layout=Layout.whole(30), chunk_bytes=10, chunks=held.get, bell=bell)


class Held:
    def __init__(self, *chunks):
        self.chunks = ChunkSet.of(chunks)
        self.looks = threading.Semaphore(0)

    def get(self):
        self.looks.release()
        return self.chunks


def test_a_ring_wakes_who_waits_for_a_chunk():
    held, bell = Held(0), Bell()
    found = []
    waiting = threading.Thread(target=lambda: found.append(lend(held, bell).wait_for(2, 10)))
    waiting.start()
    held.looks.acquire(timeout=5)
    bell.ring()
    held.looks.acquire(timeout=5)
    assert not found, "another chunk is no reason to go on"
    held.chunks = ChunkSet.of([0, 2])
    bell.ring()
    waiting.join(5)
    assert found == [True]


def test_waits_are_bounded():
    assert not lend(Held(0), Bell()).wait_for(1, 0.001)
    assert lend(Held(0), Bell()).wait_for(0, 0.0)


def test_without_a_bell_nothing_comes():
    assert not lend(Held(0), None).wait_for(1, 1000)
    assert lend(Held(0), None).wait_for(0, 1000)
