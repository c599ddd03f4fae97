import pytest

from tensorcast.movers.transports.tcp.answers import servable_bytes
from tensorcast.schema.chunks import ByteRange, ChunkSet

CHUNKS = ChunkSet.of([1, 2, 5])


@pytest.mark.parametrize(
    ("offset", "size", "wanted"),
    [
        (10, 10, 10),
        (10, 20, 20),
        (10, 40, 20),
        (15, 10, 10),
        (15, 100, 15),
        (50, 5, 5),
        (50, 100, 10),
        (0, 30, 0),
        (30, 10, 0),
        (60, 10, 0),
    ],
)
def test_only_the_beginning_that_is_there_may_be_served(offset, size, wanted):
    assert servable_bytes(CHUNKS, 10, ByteRange(offset, size)) == wanted
