"""What to say when nobody can serve the rest of a transfer. Pure."""

from __future__ import annotations

from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.faults import Fault, FaultKind
from tensorcast.schema.ids import ArtifactId
from tensorcast.schema.tensors import Manifest


def explain_end(
    artifact: ArtifactId, missing: ChunkSet, manifest: Manifest, last: Fault | None
) -> Fault:
    """Why no source is left: the last fault of a peer, in the kind that tells what follows."""
    absent = explain_absence(artifact, missing, manifest)
    if last is None:
        return absent
    if last.kind is FaultKind.NOT_FOUND:
        return Fault(kind=absent.kind, detail=f"{absent.detail} Last: {last.detail}")
    kind = FaultKind.CORRUPT if last.kind is FaultKind.CORRUPT else FaultKind.UNAVAILABLE
    left = f"{len(missing)} of {manifest.chunks_total} chunks are missing"
    detail = f"No source of artifact {artifact} is left; {left}. Last: {last.detail}"
    return Fault(kind=kind, detail=detail)


def explain_absence(artifact: ArtifactId, missing: ChunkSet, manifest: Manifest) -> Fault:
    """The fault of a transfer that nobody can serve."""
    total = manifest.chunks_total
    if len(missing) == total:
        detail = f"The bytes of artifact {artifact} are nowhere: no node that is up has them."
    else:
        lacking = f"{len(missing)} of the {total} chunks"
        detail = f"No node that is up has {lacking} of artifact {artifact} that are missing here."
    return Fault(kind=FaultKind.UNAVAILABLE, detail=detail)
