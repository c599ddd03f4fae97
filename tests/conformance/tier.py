"""What every tier must keep: `check_tier` runs over each implementation."""

from __future__ import annotations

import os

import msgspec
import pytest

from conformance.contents import make_content, manifest_of, odd_index, plain_index
from tensorcast.movers.tiers.base import Depot, Tier
from tensorcast.schema.chunks import ByteRange, ChunkSet, chunk_range
from tensorcast.schema.errors import NotFound
from tensorcast.schema.ids import ArtifactId
from tensorcast.schema.tensors import Index, Manifest, TensorSpec

ARTIFACT = ArtifactId("a" * 40)


def shared_index() -> tuple[Index, int]:
    """Tied, sliced, turned, expanded and partly overlapping tensors: (index, size in bytes)."""

    def spec(name: str, offset: int, shape: tuple[int, ...], **more: object) -> TensorSpec:
        whole = TensorSpec(name=name, dtype="F32", shape=shape, offset=offset)
        return msgspec.structs.replace(whole, **more)

    rows = 600
    size = rows * 1000 * 4
    return (
        spec("embed", 0, (rows, 1000)),
        spec("head", 0, (rows, 1000)),
        spec("turned", 0, (1000, rows), strides=(1, 1000)),
        spec("row", 4000, (1000,)),
        spec("left", size + 64, (50,)),
        spec("right", size + 64 + 100, (50,), dtype="I16"),
        spec("column", size + 1024, (100, 1), dtype="U8", strides=(5, 1)),
    ), size + 1024 + 500


def samples() -> dict[str, tuple[Index, int]]:
    """Artifacts of every shape: index and size in bytes."""
    return {
        "odd": odd_index(),
        "shared": shared_index(),
        "plain": (plain_index(3_000_000), 3_000_000),
        "empty": ((), 0),
        "no_elements": (plain_index(0), 0),
    }


def check_depot(depot: Depot) -> None:
    """Runs all checks over artifacts of every shape that need no file on this machine."""
    for index, size in samples().values():
        content = make_content(index, size)
        manifest = manifest_of(index, content)
        _check_absent(depot, manifest)
        depot.persist(ARTIFACT, manifest, memoryview(bytes(content) + b"behind it"))
        depot.persist(ARTIFACT, manifest, memoryview(content))
        _check_load(depot, manifest, bytes(content))
        _check_partial_load(depot, manifest, bytes(content))
        depot.remove(ARTIFACT)
        depot.remove(ARTIFACT)
        _check_absent(depot, manifest)


def check_tier(tier: Tier) -> None:
    """Runs all checks over artifacts of every shape."""
    check_depot(tier)
    for index, size in samples().values():
        content = make_content(index, size)
        manifest = manifest_of(index, content)
        with pytest.raises(NotFound), tier.open_ranges(ARTIFACT, manifest):
            pass
        tier.persist(ARTIFACT, manifest, memoryview(content))
        _check_ranges(tier, manifest, bytes(content))
        tier.remove(ARTIFACT)


def _check_absent(depot: Depot, manifest: Manifest) -> None:
    with pytest.raises(NotFound):
        depot.load(ARTIFACT, manifest, memoryview(bytearray(manifest.size_bytes)))
    with pytest.raises(NotFound):
        depot.verify(ARTIFACT, manifest)


def _check_load(depot: Depot, manifest: Manifest, content: bytes) -> None:
    memory = bytearray(b"\xff" * (len(content) + 7))
    arrived: list[ChunkSet] = []
    found = depot.load(ARTIFACT, manifest, memoryview(memory), arrived=arrived.append)
    assert found == ChunkSet.full(manifest.chunks_total)
    assert ChunkSet.merge(r for chunks in arrived for r in chunks.ranges) == found
    assert sum(map(len, arrived)) == len(found), "each chunk arrives once"
    assert memory[: len(content)] == content, "gaps must become zero again"
    assert memory[len(content) :] == b"\xff" * 7
    assert depot.verify(ARTIFACT, manifest) == ChunkSet()


def _check_partial_load(depot: Depot, manifest: Manifest, content: bytes) -> None:
    """Only what is missing is read; the rest of the memory is left alone."""
    missing = ChunkSet.of(range(0, manifest.chunks_total, 2))
    memory = bytearray(b"\xff" * len(content))
    assert depot.load(ARTIFACT, manifest, memoryview(memory), missing=missing) == missing
    for chunk in range(manifest.chunks_total):
        where = chunk_range(chunk, manifest.size_bytes, manifest.chunk_bytes)
        wanted = content[where.offset : where.end] if chunk in missing else b"\xff" * where.size
        assert memory[where.offset : where.end] == wanted


def _check_ranges(tier: Tier, manifest: Manifest, content: bytes) -> None:
    """The open file serves the byte space, also after the artifact is removed."""
    with tier.open_ranges(ARTIFACT, manifest) as opened:
        tier.remove(ARTIFACT)
        for offset in range(0, len(content), 777_777):
            wanted = ByteRange(offset, min(800_001, len(content) - offset))
            read = b"".join(
                bytes(p.size) if p.position is None else os.pread(opened.fd, p.size, p.position)
                for p in opened.layout.locate(wanted)
            )
            assert read == content[wanted.offset : wanted.end]
    tier.persist(ARTIFACT, manifest, memoryview(content))
