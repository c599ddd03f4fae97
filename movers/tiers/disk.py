"""The disk of a node: each artifact is a folder with a safetensors file that any tool can open."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from tensorcast.movers.tiers.base import Held, OpenFile
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.ids import ArtifactId
from tensorcast.schema.tensors import Manifest


class DiskTier:
    """`<folder>/<artifact>/model.safetensors` and `manifest.json`. Makes `folder` if need be.

    Satisfies `tiers.base.Tier`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def persist(self, artifact: ArtifactId, manifest: Manifest, memory: memoryview) -> None:
        raise NotImplementedError

    def load(self, artifact: ArtifactId, manifest: Manifest, memory: memoryview) -> ChunkSet:
        raise NotImplementedError

    def verify(self, artifact: ArtifactId, manifest: Manifest) -> ChunkSet:
        raise NotImplementedError

    def remove(self, artifact: ArtifactId) -> None:
        raise NotImplementedError

    def open_ranges(
        self, artifact: ArtifactId, manifest: Manifest
    ) -> AbstractContextManager[OpenFile]:
        raise NotImplementedError

    def list(self) -> tuple[Held, ...]:
        """What is on the disk. Removes what a crash left half-written; skips folders that it
        cannot understand."""
        raise NotImplementedError
