"""Which bytes of an artifact on its way may be read."""

import pytest

from tensorcast.client.arrivals import is_covered
from tensorcast.schema.chunks import ByteRange, ChunkSet


@pytest.mark.parametrize(
    ("offset", "size", "covered"),
    [
        (0, 0, True),
        (5, 0, True),
        (10, 10, True),
        (10, 11, False),
        (9, 2, False),
        (19, 1, True),
        (20, 1, False),
        (30, 20, True),
        (15, 20, False),
    ],
)
def test_bytes_are_there_when_all_their_chunks_are(offset, size, covered):
    chunks = ChunkSet(((1, 2), (3, 5)))
    assert is_covered(ByteRange(offset, size), chunks, 10) is covered
