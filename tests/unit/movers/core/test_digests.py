import xxhash

from tensorcast.movers.core.digests import chunk_digest, matches, matching_chunks
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.tensors import Manifest, TensorSpec

MIB = 1 << 20
CONTENT = bytes(range(256)) * (MIB // 256) * 2 + b"the short end"


def manifest():
    parts = [CONTENT[at : at + MIB] for at in range(0, len(CONTENT), MIB)]
    return Manifest(
        index=(TensorSpec(name="t", dtype="U8", shape=(len(CONTENT),), offset=0),),
        size_bytes=len(CONTENT),
        chunk_bytes=MIB,
        digests=b"".join(xxhash.xxh3_64(part).digest() for part in parts),
    )


def test_a_digest_is_the_canonical_form_of_the_number():
    assert chunk_digest(b"abc") == xxhash.xxh3_64_intdigest(b"abc").to_bytes(8, "big")


def test_each_chunk_is_checked_on_its_own():
    content = bytearray(CONTENT)
    content[MIB + 5] ^= 1
    assert matching_chunks(memoryview(content), manifest(), range(3)) == ChunkSet.of([0, 2])


def test_bytes_behind_the_space_do_not_count():
    memory = memoryview(CONTENT + b"older content")
    assert matches(memory, manifest(), 2)
