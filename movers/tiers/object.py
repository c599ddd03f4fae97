"""A bucket that all nodes share: what is stored there outlives every node.

`<url>/<artifact>/model.safetensors` holds the tensors as `core/file_plan.py` says, and
`manifest.json` the manifest with the digests. The path is the identity of the content, so two nodes
that store the same artifact write the same bytes, and the manifest, which is written last and only
if it is not there, tells that all of it is stored. Everything is checked when it is read.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tensorcast.movers.core.file_plan import plan_file
from tensorcast.movers.model_file import (
    MANIFEST,
    MANIFEST_BYTES_MAX,
    MODEL,
    Arrived,
    Record,
    find_damage,
    read_chunks,
    stream_of,
)
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.errors import Corrupt, InvalidArgument, NotFound
from tensorcast.schema.ids import ArtifactId
from tensorcast.schema.tensors import Manifest
from tensorcast.storage.objects import (
    RANGE_BYTES,
    REQUESTS_MAX,
    ObjectReader,
    Place,
    open_store,
    parse_url,
)

_HINT: Final = "Remove what lies there, and persist it again."


class ObjectTier:
    """Replicas below a URL of a store. Satisfies `tiers.base.Depot`; the store's own errors are
    NotFound (no such bucket), PermissionDenied and Unavailable."""

    def __init__(self, url: str) -> None:
        self._root = parse_url(url)
        if self._root.root.startswith("http"):
            raise InvalidArgument(
                f"{url} can only be read.", hint="An object tier is s3://, gs:// or az://."
            )

    def persist(self, artifact: ArtifactId, manifest: Manifest, memory: memoryview) -> None:
        """Stores the byte space that `memory` begins with. Does nothing when it is there already.
        A store that dies meanwhile has an object without a manifest, which nobody reads."""
        place = self._place(artifact)
        if self._find(artifact) is not None:
            return
        plan = plan_file(manifest.index, manifest.size_bytes)
        store = open_store(place.root)
        store.write(place.child(MODEL).path, stream_of(plan, memory), plan.file_bytes)
        record = Record(artifact=artifact, manifest=manifest)
        store.write_new(place.child(MANIFEST).path, msgspec.json.encode(record))

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
        them that match their digests. Raises NotFound, or Corrupt when it is not this artifact."""
        return read_chunks(
            self._open(artifact, manifest),
            plan_file(manifest.index, manifest.size_bytes).layout,
            manifest,
            memory,
            chunks=ChunkSet.full(manifest.chunks_total) if missing is None else missing,
            run_bytes=RANGE_BYTES,
            threads=REQUESTS_MAX,
            arrived=arrived,
        )

    def verify(self, artifact: ArtifactId, manifest: Manifest) -> ChunkSet:
        """The chunks that do not match their digests. Raises as `load`."""
        return find_damage(
            self._open(artifact, manifest),
            plan_file(manifest.index, manifest.size_bytes).layout,
            manifest,
            run_bytes=RANGE_BYTES,
            threads=REQUESTS_MAX,
        )

    def remove(self, artifact: ArtifactId) -> None:
        """Forgets an artifact. Safe to repeat."""
        place = self._place(artifact)
        store = open_store(place.root)
        store.remove(place.child(MANIFEST).path)
        store.remove(place.child(MODEL).path)

    def _place(self, artifact: ArtifactId) -> Place:
        return self._root.child(artifact)

    def _find(self, artifact: ArtifactId) -> Record | None:
        """What is stored under an id. Raises Corrupt when it cannot be read as a manifest."""
        place = self._place(artifact).child(MANIFEST)
        store = open_store(place.root)
        if not store.exists(place.path):
            return None
        text = store.read_whole(place.path, MANIFEST_BYTES_MAX)
        try:
            return msgspec.json.decode(text, type=Record)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise Corrupt(f"{place} is no manifest.", hint=_HINT, artifact=artifact) from error

    def _open(self, artifact: ArtifactId, manifest: Manifest) -> ObjectReader:
        record = self._find(artifact)
        place = self._place(artifact).child(MODEL)
        if record is None:
            raise NotFound(f"Artifact {artifact} is not stored at {place}.", artifact=artifact)
        try:
            reader = ObjectReader(open_store(place.root), place.path)
        except NotFound as error:
            raise Corrupt(f"{place} is missing.", hint=_HINT, artifact=artifact) from error
        plan = plan_file(manifest.index, manifest.size_bytes)
        if record.manifest != manifest or reader.size_bytes != plan.file_bytes:
            raise Corrupt(f"{place} is not what its manifest says.", hint=_HINT, artifact=artifact)
        return reader
