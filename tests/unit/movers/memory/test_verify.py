from conformance.contents import MIB, make_content, manifest_of, plain_index
from tensorcast.movers.memory.verify import verify_chunks
from tensorcast.schema.chunks import ChunkSet


def test_every_chunk_is_checked_and_damage_is_found():
    size = 5 * MIB + 7
    content = make_content(plain_index(size), size)
    manifest = manifest_of(plain_index(size), content)
    memory = memoryview(content)
    assert verify_chunks(memory, manifest) == ChunkSet.full(6)
    content[3 * MIB] ^= 1
    content[-1] ^= 128
    assert verify_chunks(memory, manifest) == ChunkSet.of([0, 1, 2, 4])
    assert verify_chunks(memory, manifest, ChunkSet.of([2, 3])) == ChunkSet.of([2])


def test_an_empty_artifact_has_nothing_to_check():
    assert verify_chunks(memoryview(b""), manifest_of((), b"")) == ChunkSet()
