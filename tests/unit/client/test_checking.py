"""Bytes that are not those of the artifact are told, with their chunk."""

from __future__ import annotations

import threading

import pytest
import xxhash

from tensorcast.client.checking import check_bytes
from tensorcast.schema.errors import Cancelled, Corrupt
from tensorcast.schema.ids import ArtifactId
from tensorcast.schema.tensors import Manifest

CHUNK, SIZE = 1 << 20, (2 << 20) + 100
ART = ArtifactId("a" * 40)


@pytest.fixture
def content():
    return bytearray(bytes(range(256)) * (SIZE // 256 + 1))[:SIZE]


def sealed(content):
    digests = b"".join(
        xxhash.xxh3_64_digest(content[at : at + CHUNK]) for at in range(0, SIZE, CHUNK)
    )
    return Manifest(index=(), size_bytes=SIZE, chunk_bytes=CHUNK, digests=digests)


def test_what_was_sealed_passes_also_when_the_segment_is_larger(content):
    manifest = sealed(content)
    check_bytes(content, ART, manifest, threading.Event())
    check_bytes(content + b"more", ART, manifest, threading.Event())
    check_bytes(None, ART, manifest, threading.Event())


@pytest.mark.parametrize(("at", "chunk"), [(0, 0), (CHUNK, 1), (SIZE - 1, 2)])
def test_one_byte_that_differs_is_found(content, at, chunk):
    manifest = sealed(content)
    content[at] ^= 1
    with pytest.raises(Corrupt, match=f"Chunk {chunk} of"):
        check_bytes(content, ART, manifest, threading.Event())


def test_it_can_be_given_up(content):
    stop = threading.Event()
    stop.set()
    with pytest.raises(Cancelled):
        check_bytes(content, ART, sealed(content), stop)
