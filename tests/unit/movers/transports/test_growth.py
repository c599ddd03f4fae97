from tensorcast.movers.core.streams import Path
from tensorcast.movers.core.transfer import Broken, Completed, Progressed, Pull
from tensorcast.movers.transports.tcp.growth import WATCH_S, Growth
from tensorcast.schema.chunks import ByteRange, ChunkSet
from tensorcast.schema.faults import Fault, FaultKind

MIB = 1 << 20
LOSSY = Path(rtt_s=0.02, loss=0.01, window_bytes=16 << 20, is_local=False)


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def pull(number, chunks=8):
    where = ByteRange(0, chunks * MIB)
    return Pull(
        number=number,
        peer="n1",
        artifact="a",
        first=0,
        stop=chunks,
        source_range=where,
        target_range=where,
        chunk_bytes=MIB,
        digests=bytes(8 * chunks),
    )


def watch(growth, clock, number, rate):
    """Keeps a pull in flight that brings so many bytes a second; whether it is time to judge."""
    growth.post([pull(number)])
    clock.now += MIB / rate
    return growth.note([Progressed(pull=pull(number), arrived=ChunkSet.of([0]))])


def test_it_grows_while_that_pays_and_then_never_asks_again():
    clock = Clock()
    growth = Growth(1, clock)
    assert not watch(growth, clock, 1, MIB / WATCH_S * 2), "it has not been watched for long"
    assert watch(growth, clock, 2, MIB / WATCH_S)
    assert growth.more(LOSSY, 2) == 1
    assert watch(growth, clock, 3, 2 * MIB) or watch(growth, clock, 4, 2 * MIB)
    assert growth.more(LOSSY, 2) == 0, "the second connection brought nothing"
    assert not watch(growth, clock, 5, 1.0)


def test_times_without_work_do_not_count():
    clock = Clock()
    growth = Growth(1, clock)
    growth.post([pull(1)])
    assert not growth.note([Completed(pull=pull(1))])
    clock.now += 1000
    assert not growth.note([])
    growth.post([pull(2)])
    assert not growth.note([Progressed(pull=pull(2), arrived=ChunkSet.of([0]))])


def test_each_byte_counts_once():
    clock = Clock()
    growth = Growth(1, clock)
    fault = Fault(kind=FaultKind.NOT_FOUND, detail="x")
    growth.post([pull(0), pull(1), pull(2)])
    growth.note([Progressed(pull=pull(1), arrived=ChunkSet.full(6))])
    growth.note([Completed(pull=pull(1)), Completed(pull=pull(1))])
    growth.note([Broken(pull=pull(2), fault=fault, arrived=ChunkSet.of([0]))])
    clock.now += 1.0
    assert growth.note([])
    growth.more(LOSSY, 2)
    assert growth._tries[0].rate == 9 * MIB
