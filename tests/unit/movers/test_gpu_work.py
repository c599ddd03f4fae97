"""What goes to a device next, and how much it is."""

from samples import manifest
from tensorcast.movers.gpu_work import count_bytes, first_chunks
from tensorcast.schema.chunks import ChunkSet


class Target:
    manifest = manifest(4)


def test_the_next_chunks_are_the_beginning_of_the_first_run():
    assert first_chunks(ChunkSet(), 3) == ChunkSet()
    assert first_chunks(ChunkSet.of([2, 3, 4, 5, 9]), 3) == ChunkSet.of([2, 3, 4])
    assert first_chunks(ChunkSet.of([2, 9]), 3) == ChunkSet.of([2])


def test_the_last_chunk_may_be_a_short_one():
    total = Target.manifest.chunks_total
    assert count_bytes(ChunkSet.full(total), Target) == Target.manifest.size_bytes
    assert count_bytes(ChunkSet(), Target) == 0
