"""What a tier promises: a place other than memory where whole replicas live."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

import msgspec

from tensorcast.movers.core.layout import Layout
from tensorcast.movers.model_file import Arrived
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.ids import ArtifactId
from tensorcast.schema.tensors import Manifest


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """An artifact that lies in a tier; `stored_bytes` is what it takes there."""

    artifact: ArtifactId
    manifest: Manifest
    stored_bytes: int


class OpenFile(msgspec.Struct, frozen=True, kw_only=True):
    """An open replica: the byte space lies behind `fd` as `layout` says."""

    fd: int
    layout: Layout


class Depot(Protocol):
    """Every method blocks and may be called from any thread, but not twice at once for the same
    artifact. All raise OutOfCapacity, PermissionDenied or Unavailable when the storage does."""

    def persist(self, artifact: ArtifactId, manifest: Manifest, memory: memoryview) -> None:
        """Stores the byte space that `memory` begins with, durably, whole or not at all. Does
        nothing when it is there already."""
        ...

    def load(
        self,
        artifact: ArtifactId,
        manifest: Manifest,
        memory: memoryview,
        *,
        missing: ChunkSet | None = None,
        arrived: Arrived | None = None,
    ) -> ChunkSet:
        """Fills `memory` with the byte space, or with its chunks in `missing`; returns those of
        them that match their digests (all, unless the storage is damaged). `arrived` is told of
        them as they come, from several threads. Raises NotFound, or Corrupt when it is not this
        artifact."""
        ...

    def verify(self, artifact: ArtifactId, manifest: Manifest) -> ChunkSet:
        """The chunks that do not match their digests: none, unless the storage is damaged. Raises
        as `load`."""
        ...

    def remove(self, artifact: ArtifactId) -> None:
        """Forgets an artifact, durably. Safe to repeat."""
        ...


class Tier(Depot, Protocol):
    """A tier on this machine, from which peers can be served."""

    def open_ranges(
        self, artifact: ArtifactId, manifest: Manifest
    ) -> AbstractContextManager[OpenFile]:
        """The open replica, to serve it to peers. It can be read until the context ends, even
        if it is removed. Raises as `load`."""
        ...
