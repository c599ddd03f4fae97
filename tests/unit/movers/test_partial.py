"""A file that fills chunk by chunk ends as the one that the disk tier would have written."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.contents import make_content, manifest_of
from conformance.tier import samples
from samples import artifact_id
from tensorcast.movers.partial import PartialFile, list_partial, remove_partial
from tensorcast.movers.tiers.disk import MODEL, DiskTier
from tensorcast.schema.chunks import ByteRange, ChunkSet, chunk_range
from tensorcast.schema.tensors import Manifest

A = artifact_id("a")
CASES = samples()


def content_of(name: str) -> tuple[bytes, Manifest]:
    index, size = CASES[name]
    content = make_content(index, size)
    return bytes(content), manifest_of(index, content)


def write(file: PartialFile, manifest: Manifest, content: bytes, chunks: ChunkSet) -> None:
    for chunk in chunks:
        where = chunk_range(chunk, manifest.size_bytes, manifest.chunk_bytes)
        file.write(where, memoryview(content)[where.offset : where.end])


@pytest.mark.parametrize("name", CASES)
def test_it_ends_as_a_whole_replica(tmp_path: Path, name: str):
    content, manifest = content_of(name)
    disk, other = DiskTier(tmp_path / "disk"), DiskTier(tmp_path / "other")
    file = PartialFile(disk.folder, A, manifest)
    assert disk.list() == ()
    everything = ChunkSet.full(manifest.chunks_total)
    write(file, manifest, content, everything)
    file.finish()
    file.close()
    assert [held.artifact for held in disk.list()] == [A]
    assert list_partial(disk.folder) == {}
    target = bytearray(len(content))
    assert disk.load(A, manifest, memoryview(target)) == everything
    assert bytes(target) == content
    other.persist(A, manifest, memoryview(content))
    assert (disk.folder / A / MODEL).read_bytes() == (other.folder / A / MODEL).read_bytes()


def test_what_came_before_a_crash_is_found_again(tmp_path: Path):
    content, manifest = content_of("shared")
    file = PartialFile(tmp_path, A, manifest)
    assert file.is_new
    write(file, manifest, content, ChunkSet.of([1]))
    file.close()  # as a crash: nothing else is kept
    again = PartialFile(tmp_path, A, manifest)
    assert not again.is_new
    assert again.good_chunks() == ChunkSet.of([1])
    assert list_partial(tmp_path) == {A: again.plan.file_bytes}
    again.close()


def test_what_is_good_of_a_damaged_replica_stays(tmp_path: Path):
    content, manifest = content_of("plain")
    disk = DiskTier(tmp_path)
    disk.persist(A, manifest, memoryview(content))
    model = tmp_path / A / MODEL
    damaged = bytearray(model.read_bytes())
    damaged[-5] ^= 1
    model.write_bytes(damaged)
    file = PartialFile(tmp_path, A, manifest)
    assert disk.list() == ()
    assert file.good_chunks() == ChunkSet.of([0, 1])
    write(file, manifest, content, ChunkSet.of([2]))
    file.finish()
    file.close()
    assert not disk.verify(A, manifest).ranges


def test_many_small_tensors_are_written_in_few_calls(tmp_path: Path):
    content, manifest = content_of("odd")
    file = PartialFile(tmp_path, A, manifest)
    file.write(ByteRange(0, len(content)), memoryview(content))
    file.finish()
    file.close()
    assert not DiskTier(tmp_path).verify(A, manifest).ranges


def test_what_nobody_finishes_is_removed(tmp_path: Path):
    _, manifest = content_of("plain")
    PartialFile(tmp_path, A, manifest).close()
    remove_partial(tmp_path, A)
    remove_partial(tmp_path, A)
    assert list(tmp_path.iterdir()) == []
