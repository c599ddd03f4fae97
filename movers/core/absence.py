"""What to say when nobody can serve the rest of a transfer. Pure."""

from __future__ import annotations

from typing import Final

from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.faults import Fault, FaultKind
from tensorcast.schema.ids import ArtifactId
from tensorcast.schema.tensors import Manifest

_BEFORE: Final = " What came before was damaged: "


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


def worse_of(before: Fault | None, fault: Fault | None) -> Fault | None:
    """Which of two faults tells why a transfer ends: the later one; but a peer that sent damaged
    bytes and then, having looked, no longer has them, has damaged ones."""
    if fault is None:
        return before
    is_damage = before is not None and before.kind is FaultKind.CORRUPT
    return before if is_damage and fault.kind is FaultKind.NOT_FOUND else fault


def remember_damage(before: Fault | None, fault: Fault) -> Fault:
    """The fault of an operation that was tried again after `before`: when the bytes were damaged
    then and cannot be had now, that is why."""
    was_damaged = before is not None and before.kind is FaultKind.CORRUPT
    if before is None or not was_damaged or fault.kind is not FaultKind.UNAVAILABLE:
        return fault
    damage = before.detail.rpartition(_BEFORE)[2]
    return Fault(
        kind=FaultKind.CORRUPT,
        detail=f"{fault.detail}{_BEFORE}{damage}",
        permanent=fault.permanent,
    )
