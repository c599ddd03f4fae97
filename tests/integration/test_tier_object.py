"""The object tier on a real S3-compatible server: damage, half a write, a server that dies."""

from __future__ import annotations

import msgspec
import pytest
from safetensors import safe_open

from conformance.contents import make_content, manifest_of, odd_index, plain_index
from conformance.tier import ARTIFACT, check_depot
from s3 import S3Server, s3_server
from tensorcast.movers.tiers.object import ObjectTier
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.errors import Corrupt, InvalidArgument, NotFound, Unavailable
from tensorcast.storage import objects
from tensorcast.storage.objects import open_store

MODEL = f"replicas/{ARTIFACT}/model.safetensors"
MANIFEST = f"replicas/{ARTIFACT}/manifest.json"
SIZE = 3 << 20


@pytest.fixture(scope="module")
def shared():
    with s3_server() as server:
        server.make_bucket("bucket")
        yield server


@pytest.fixture
def server(shared, monkeypatch) -> S3Server:
    """The server of this module; the environment names it."""
    for name, value in shared.environ.items():
        monkeypatch.setenv(name, value)
    return shared


@pytest.fixture
def tier(server):
    tier = ObjectTier("s3://bucket/replicas")
    yield tier
    tier.remove(ARTIFACT)


@pytest.fixture
def stored(tier):
    """A stored artifact: (manifest, content)."""
    content = make_content(plain_index(SIZE), SIZE)
    manifest = manifest_of(plain_index(SIZE), content)
    tier.persist(ARTIFACT, manifest, memoryview(content))
    return manifest, content


def load(tier, manifest) -> ChunkSet:
    return tier.load(ARTIFACT, manifest, memoryview(bytearray(manifest.size_bytes)))


def read(path: str) -> bytes:
    return open_store("s3://bucket").read_whole(path, 1 << 30)


def test_it_keeps_the_contract(tier):
    check_depot(tier)


def test_other_tools_read_what_is_stored(tier, tmp_path):
    index, size = odd_index()
    content = make_content(index, size)
    tier.persist(ARTIFACT, manifest_of(index, content), memoryview(content))
    path = tmp_path / "model.safetensors"
    path.write_bytes(read(MODEL))
    with safe_open(path, "numpy") as opened:
        assert {spec.name for spec in index} <= set(opened.keys())


def test_a_flipped_byte_is_found_and_named(server, tier, stored):
    manifest, _ = stored
    damaged = bytearray(read(MODEL))
    damaged[-1] ^= 1
    server.upload("bucket", MODEL, bytes(damaged))
    last = manifest.chunks_total - 1
    assert tier.verify(ARTIFACT, manifest) == ChunkSet.of([last])
    assert load(tier, manifest) == ChunkSet.of(range(last))


@pytest.mark.parametrize("length", [0, 100, -1])
def test_an_object_that_is_cut_off_is_corrupt(server, tier, stored, length):
    server.upload("bucket", MODEL, read(MODEL)[:length])
    with pytest.raises(Corrupt, match="is not what its manifest says"):
        load(tier, stored[0])


def test_an_object_without_a_manifest_is_nothing(tier, stored):
    """As after a death between the two writes. Storing it again mends it."""
    manifest, content = stored
    open_store("s3://bucket").remove(MANIFEST)
    with pytest.raises(NotFound, match="is not stored at"):
        load(tier, manifest)
    tier.persist(ARTIFACT, manifest, memoryview(content))
    assert len(load(tier, manifest)) == manifest.chunks_total


@pytest.mark.parametrize("text", [b"", b"{", b'{"artifact": 3}', b"[" * 10_000])
def test_a_manifest_that_lies_is_corrupt(server, tier, stored, text):
    server.upload("bucket", MANIFEST, text)
    with pytest.raises(Corrupt, match="is no manifest"):
        load(tier, stored[0])


def test_a_manifest_of_other_content_is_corrupt(server, tier, stored):
    manifest, _ = stored
    other = msgspec.structs.replace(manifest, digests=bytes(len(manifest.digests)))
    with pytest.raises(Corrupt, match="is not what its manifest says"):
        load(tier, other)


def test_an_object_that_is_missing_is_corrupt(tier, stored):
    open_store("s3://bucket").remove(MODEL)
    with pytest.raises(Corrupt, match="is missing"):
        load(tier, stored[0])


def test_a_bucket_that_is_missing_is_told(server):
    content = make_content(plain_index(100), 100)
    manifest = manifest_of(plain_index(100), content)
    with pytest.raises(NotFound, match="no bucket s3://absent"):
        ObjectTier("s3://absent/x").persist(ARTIFACT, manifest, memoryview(content))


def test_a_tier_must_be_writable():
    with pytest.raises(InvalidArgument, match="can only be read"):
        ObjectTier("https://host/x")


@pytest.mark.slow
def test_a_server_that_dies_is_unavailable(monkeypatch):
    monkeypatch.setattr(objects, "RETRIES_MAX", 1)
    with s3_server() as server:
        for name, value in server.environ.items():
            monkeypatch.setenv(name, value)
        server.make_bucket("bucket")
        tier = ObjectTier("s3://bucket/replicas")
        content = make_content(plain_index(SIZE), SIZE)
        manifest = manifest_of(plain_index(SIZE), content)
        tier.persist(ARTIFACT, manifest, memoryview(content))

        def stop(_: ChunkSet) -> None:
            server.stop()  # after the first chunks have come

        def load_one_by_one() -> None:
            for chunk in range(manifest.chunks_total):
                memory = memoryview(bytearray(SIZE))
                missing = ChunkSet.of([chunk])
                tier.load(ARTIFACT, manifest, memory, missing=missing, arrived=stop)

        with pytest.raises(Unavailable, match="cannot be reached"):
            load_one_by_one()
        with pytest.raises(Unavailable):
            tier.persist(ARTIFACT, manifest, memoryview(content))
