"""Nothing that a peer says is used unchecked."""

import pytest

from tensorcast.movers.transports.shm import wire
from tensorcast.schema.chunks import CHUNKS_MAX, ChunkSet
from tensorcast.schema.errors import Corrupt
from tensorcast.schema.ids import ArtifactId


def test_messages_come_back():
    look = wire.Look(ArtifactId("a" * 40), 3, 0.1, True)
    assert wire.parse_look(wire.pack(look)) == look
    seen = wire.Seen(runs=((0, 3), (7, 8)), size_bytes=10)
    assert wire.parse_seen(wire.pack(seen)) == seen


@pytest.mark.parametrize("packet", [b"", b"{}", b'["x"]', b'{"artifact":"a","known":0,"wait_s":9}'])
def test_what_is_no_request_is_refused(packet):
    with pytest.raises(Corrupt):
        wire.parse_look(packet)


def test_a_peer_may_not_make_us_wait_for_long():
    with pytest.raises(Corrupt, match="would wait"):
        wire.parse_look(wire.pack(wire.Look(ArtifactId("a" * 40), 0, 60.0, False)))


@pytest.mark.parametrize("runs", [((3, 2),), ((-1, 2),), ((0, CHUNKS_MAX + 1),)])
def test_chunks_that_cannot_be_are_refused(runs):
    with pytest.raises(Corrupt, match="cannot be"):
        wire.parse_seen(wire.pack(wire.Seen(runs=runs)))


def test_all_chunks_are_told_as_none():
    assert wire.runs_of(ChunkSet.full(5), 5) is None
    assert wire.runs_of(ChunkSet.of([1, 2, 4]), 5) == ((1, 3), (4, 5))
