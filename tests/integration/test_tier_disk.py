"""The disk tier on a real file system: other tools, damage, full disks, crashes."""

import resource
import signal
import subprocess
import sys

import numpy as np
import pytest
from safetensors import safe_open

from conformance.contents import make_content, manifest_of, odd_index
from conformance.tier import ARTIFACT, samples, shared_index
from tensorcast.movers.durable import explain
from tensorcast.movers.tiers.disk import DiskTier
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.errors import Corrupt, OutOfCapacity, PermissionDenied, Unavailable

DTYPES = {"F32": "<f4", "U8": "u1", "I16": "<i2", "F64": "<f8", "I64": "<i8", "BOOL": "?"}


@pytest.fixture
def tier(tmp_path):
    return DiskTier(tmp_path / "disk")


def persist(tier, index, size):
    content = make_content(index, size)
    for spec in index:
        if spec.dtype == "BOOL":
            content[spec.offset : spec.offset + spec.size_bytes] = b"\1" * spec.size_bytes
    manifest = manifest_of(index, content)
    tier.persist(ARTIFACT, manifest, memoryview(content))
    return manifest, bytes(content), tier.folder / ARTIFACT / "model.safetensors"


def expected(spec, content):
    dtype = np.dtype(DTYPES[spec.dtype])
    if spec.strides is None:
        count = spec.size_bytes // dtype.itemsize
        return np.frombuffer(content, dtype, count, spec.offset).reshape(spec.shape)
    steps = tuple(step * dtype.itemsize for step in spec.strides)
    return np.ndarray(spec.shape, dtype, content, spec.offset, steps)


@pytest.mark.parametrize("name", list(samples()))
def test_other_tools_read_every_tensor(tier, name):
    index, size = samples()[name]
    _, content, path = persist(tier, index, size)
    with safe_open(path, "numpy") as opened:
        metadata = opened.metadata()
        assert metadata["format"] == "pt"
        for spec in index:
            if spec.dtype not in DTYPES:
                assert list(opened.get_slice(spec.name).get_shape()) == list(spec.shape)
                continue
            read = opened.get_tensor(metadata.get(spec.name, spec.name))
            wanted = expected(spec, content)
            assert (read.dtype, read.shape) == (wanted.dtype, wanted.shape)
            assert read.tobytes() == wanted.tobytes(), spec.name


def test_shared_bytes_are_stored_once(tier):
    index, size = shared_index()
    _, _, path = persist(tier, index, size)
    copies = sum(s.size_bytes for s in index if s.name not in ("embed", "head"))
    assert path.stat().st_size <= size + copies + 8192


@pytest.mark.parametrize("size", [0, -1, 1])
def test_a_file_of_another_size_is_refused(tier, size):
    manifest, content, path = persist(tier, *odd_index())
    stored = path.read_bytes()
    path.write_bytes(stored[:size] if size < 1 else stored + b"x")
    with pytest.raises(Corrupt, match="is not what its manifest says"):
        tier.load(ARTIFACT, manifest, memoryview(bytearray(len(content))))
    assert tier.list() == ()
    tier.persist(ARTIFACT, manifest, memoryview(content))
    assert tier.verify(ARTIFACT, manifest) == ChunkSet()


def test_a_damaged_chunk_is_found(tier):
    manifest, content, path = persist(tier, *odd_index())
    stored = bytearray(path.read_bytes())
    stored[-1000] ^= 1
    path.write_bytes(stored)
    assert tier.verify(ARTIFACT, manifest) == ChunkSet.of([1])
    memory = memoryview(bytearray(len(content)))
    assert tier.load(ARTIFACT, manifest, memory) == ChunkSet.of([0])


def test_a_hostile_header_is_not_followed(tier):
    manifest, content, path = persist(tier, *odd_index())
    stored = bytearray(path.read_bytes())
    stored[:8] = b"\xff" * 8
    path.write_bytes(stored)
    with pytest.raises(Corrupt):
        tier.load(ARTIFACT, manifest, memoryview(bytearray(len(content))))


def test_what_is_there_is_listed_after_a_restart(tier):
    manifest, _, path = persist(tier, *odd_index())
    (tier.folder / "stray").mkdir()
    (tier.folder / "file").write_text("stray")
    leftover = tier.folder / ".writing-b"
    leftover.mkdir()
    (leftover / "model.safetensors").write_bytes(b"half")
    (held,) = DiskTier(tier.folder).list()
    assert (held.artifact, held.manifest) == (ARTIFACT, manifest)
    assert held.stored_bytes == path.stat().st_size
    assert not leftover.exists()


@pytest.mark.parametrize("record", [b"", b"{}", b"[1]", b"\xff", b'{"artifact":"b","manifest":{}}'])
def test_a_broken_record_is_skipped(tier, record):
    _, _, path = persist(tier, *odd_index())
    path.with_name("manifest.json").write_bytes(record)
    assert tier.list() == ()


def test_nothing_is_listed_before_the_first(tier):
    assert tier.list() == ()


@pytest.fixture
def small_disk():
    """Files cannot grow beyond 1 MiB: as on a full disk."""
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_leaves_nothing_behind(tier, small_disk):
    with pytest.raises(OutOfCapacity, match="The disk is full: cannot write"):
        persist(tier, *odd_index())
    assert list(tier.folder.iterdir()) == []


CRASH = """
import os, sys
from pathlib import Path
from conformance.contents import make_content, manifest_of, odd_index
from conformance.tier import ARTIFACT
from tensorcast.movers.tiers import disk
index, size = odd_index()
content = make_content(index, size)
disk.{name} = lambda *_: os._exit(9)
disk.DiskTier(Path(sys.argv[1])).persist(ARTIFACT, manifest_of(index, content), memoryview(content))
"""


@pytest.mark.parametrize("name", ["write_file", "_replace", "_write_pieces"])
def test_a_crash_in_the_middle_leaves_all_or_nothing(tier, name, request):
    code = CRASH.format(name=name)
    ended = subprocess.run(
        [sys.executable, "-c", code, str(tier.folder)],
        cwd=request.config.rootpath / "tests",
        env={"PYTHONPATH": str(request.config.rootpath / "tests")},
        check=False,
    )
    assert ended.returncode in (0, 9)
    assert (ended.returncode == 0) == (len(tier.list()) == 1)
    assert all(not path.name.startswith(".") for path in tier.folder.iterdir())


@pytest.mark.parametrize(
    ("number", "kind"),
    [(28, OutOfCapacity), (122, OutOfCapacity), (13, PermissionDenied), (5, Unavailable)],
)
def test_errors_of_the_file_system_come_in_words(tmp_path, number, kind):
    error = explain(OSError(number, "text"), tmp_path, "write")
    assert isinstance(error, kind)
    assert str(tmp_path) in error.message
