"""Compares bytes that a mover gave with the digests of their artifact."""

from __future__ import annotations

import threading

import xxhash

from tensorcast.client.memory import Mapping
from tensorcast.schema.errors import Cancelled, Corrupt
from tensorcast.schema.ids import ArtifactId
from tensorcast.schema.tensors import Manifest

DIGEST_BYTES = 8


def check_bytes(
    memory: Mapping | None, artifact: ArtifactId, manifest: Manifest, stop: threading.Event
) -> None:
    """Reads all bytes once. Raises Corrupt for the first chunk that is not what was sealed,
    Cancelled when `stop` is set."""
    if memory is None:
        return
    size, step = manifest.size_bytes, manifest.chunk_bytes
    with memoryview(memory) as whole:
        for number, begin in enumerate(range(0, size, step)):
            if stop.is_set():
                raise Cancelled("The check was given up.", artifact=artifact)
            sealed = manifest.digests[number * DIGEST_BYTES : (number + 1) * DIGEST_BYTES]
            if xxhash.xxh3_64_digest(whole[begin : min(begin + step, size)]) != sealed:
                raise Corrupt(
                    f"Chunk {number} of {artifact} is not what was sealed.",
                    hint=f"`tcctl artifact verify {artifact}` tells which replica is damaged.",
                    artifact=artifact,
                )
