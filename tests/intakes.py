"""What a put of an intake writes, without a mover: in a segment of the test's own."""

from __future__ import annotations

import os
import threading

import blake3
import xxhash

from tensorcast.client.filling import Intake, Sealed, write
from tensorcast.schema.chunks import choose_chunk_bytes
from tensorcast.schema.tensors import Manifest, derive_artifact_id
from tensorcast.storage.memory import HUGE_BYTES


def written(intake: Intake, dirt: bytes = b"") -> tuple[bytes, Sealed]:
    """The bytes that a put writes into new memory, or into memory that held `dirt` (repeated); and
    their identity, as a mover finds it."""
    segment = os.memfd_create("test")
    try:
        os.ftruncate(segment, -(-intake.size_bytes // HUGE_BYTES) * HUGE_BYTES)
        if dirt:
            os.pwrite(
                segment, (dirt * (intake.size_bytes // len(dirt) + 1))[: intake.size_bytes], 0
            )
        write(segment, intake, is_zero=not dirt, stop=threading.Event())
        found = os.pread(segment, intake.size_bytes, 0)
    finally:
        os.close(segment)
    return found, identity(intake, found)


def identity(intake: Intake, content: bytes) -> Sealed:
    """The identity of these bytes as those of the intake's tensors."""
    chunk_bytes = choose_chunk_bytes(len(content))
    chunks = [content[at : at + chunk_bytes] for at in range(0, len(content), chunk_bytes)]
    manifest = Manifest(
        index=intake.index,
        size_bytes=len(content),
        chunk_bytes=chunk_bytes,
        digests=b"".join(xxhash.xxh3_64_digest(chunk) for chunk in chunks),
    )
    digests = (blake3.blake3(chunk).digest() for chunk in chunks)
    return Sealed(derive_artifact_id(intake.index, len(content), digests), manifest)
