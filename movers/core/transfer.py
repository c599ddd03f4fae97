"""One transfer as a pure machine: `begin` and `advance` say what to record and what to pull next.

The shell records `turn.events`, posts `turn.pulls`, waits for a completion and calls `advance`,
until `turn.status` is no longer RUNNING. A pull that breaks is a completion like any other; so
failover is a table test. As long as the status is RUNNING at least one pull is in flight.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from tensorcast.movers.core.sources import (
    Limits,
    Lives,
    Run,
    Source,
    admit,
    choose_runs,
    grown,
    settle,
)
from tensorcast.schema.aggregates.operation import Operation
from tensorcast.schema.chunks import ByteRange, ChunkSet, chunk_range
from tensorcast.schema.events import (
    Event,
    OperationFailed,
    OperationSucceeded,
    ReplicaFilled,
    ReplicaReady,
)
from tensorcast.schema.faults import Fault, FaultKind
from tensorcast.schema.ids import (
    ArtifactId,
    Epoch,
    NodeId,
    OperationId,
    ReplicaId,
    Tier,
    replica_id,
)
from tensorcast.schema.tensors import CHUNK_DIGEST_BYTES, Manifest


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The replica that the transfer fills, and the operation that asked for it (None: a reader on
    the node did)."""

    artifact: ArtifactId
    node: NodeId
    epoch: Epoch
    operation: OperationId | None = None

    @property
    def replica(self) -> ReplicaId:
        return replica_id(self.artifact, self.node, Tier.DRAM)


def target_of(operation: Operation) -> Target:
    """The target of a started operation that materializes an artifact."""
    return Target(
        artifact=operation.work.artifact,
        node=operation.node,
        epoch=operation.epoch,
        operation=operation.id,
    )


class Pull(msgspec.Struct, frozen=True, kw_only=True):
    """Read chunks `first` .. `stop` - 1 of an artifact from `peer`: its `source_range` in the
    peer's byte space into `target_range` of ours. `number` is unique within its transfer;
    `digests` holds the 8-byte XXH3-64 digest of each chunk; the peer may hold its answer back for
    `wait_s` if it does not have the first chunk yet."""

    number: int
    peer: NodeId
    artifact: ArtifactId
    first: int
    stop: int
    source_range: ByteRange
    target_range: ByteRange
    chunk_bytes: int
    digests: bytes
    epoch: Epoch = Epoch(0)
    transport: str = "tcp"
    wait_s: float = 0.0

    @property
    def life(self) -> tuple[NodeId, Epoch]:
        """Which life of the peer is asked."""
        return self.peer, self.epoch

    @property
    def chunks(self) -> ChunkSet:
        return ChunkSet(((self.first, self.stop),))

    def digest(self, chunk: int) -> bytes:
        """The digest that this chunk must have."""
        start = (chunk - self.first) * CHUNK_DIGEST_BYTES
        return self.digests[start : start + CHUNK_DIGEST_BYTES]


class Completed(msgspec.Struct, frozen=True, kw_only=True):
    """All chunks of the pull have arrived and match. `holds`: all that the peer holds by now, if
    it said so."""

    pull: Pull
    holds: ChunkSet | None = None


class Broken(msgspec.Struct, frozen=True, kw_only=True):
    """The pull ended early or in part: only `arrived` came and matches.

    Kinds of fault: CORRUPT (a chunk does not match its digest), NOT_FOUND (the peer does not have
    the chunk or the artifact), anything else: the peer is of no more use."""

    pull: Pull
    fault: Fault
    arrived: ChunkSet = ChunkSet()
    holds: ChunkSet | None = None


class Progressed(msgspec.Struct, frozen=True, kw_only=True):
    """Some chunks of a pull that is still in flight have arrived and match. A channel delivers any
    number of these before the one Completed or Broken; a Broken does not repeat their chunks."""

    pull: Pull
    arrived: ChunkSet
    holds: ChunkSet | None = None


Completion = Progressed | Completed | Broken


class TransferStatus(StrEnum):
    RUNNING = "running"
    READY = "ready"
    FAILED = "failed"


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """State of one transfer. `missing` includes what is in flight; `unreported` are chunks that
    arrived since the last ReplicaFilled; `transports` counts bytes by transport."""

    target: Target
    manifest: Manifest
    limits: Limits
    sources: tuple[Source, ...]
    missing: ChunkSet
    in_flight: tuple[Pull, ...] = ()
    unreported: ChunkSet = ChunkSet()
    lost: Lives = frozenset()
    transports: dict[str, int] = {}
    pulls_posted: int = 0
    fault: Fault | None = None
    status: TransferStatus = TransferStatus.RUNNING

    @property
    def bytes_moved(self) -> int:
        return sum(self.transports.values())


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """What the shell must do next: record these events, then post these pulls."""

    transfer: Transfer
    pulls: tuple[Pull, ...] = ()
    events: tuple[Event, ...] = ()

    @property
    def status(self) -> TransferStatus:
        return self.transfer.status

    @property
    def fault(self) -> Fault | None:
        """Why it failed; None unless the status is FAILED."""
        return self.transfer.fault if self.status is TransferStatus.FAILED else None


def begin(
    target: Target,
    manifest: Manifest,
    missing: ChunkSet,
    sources: Sequence[Source],
    limits: Limits = Limits(),  # noqa: B008  (a frozen value)
) -> Turn:
    """The first turn: pulls of `missing` spread over `sources`; READY at once when nothing is
    missing, FAILED at once when there is no source."""
    transfer = Transfer(
        target=target,
        manifest=manifest,
        limits=limits,
        sources=admit((), sources, frozenset()),
        missing=missing,
    )
    return _turn(transfer)


def learn(transfer: Transfer, sources: Sequence[Source]) -> Turn:
    """The turn after news from the log: more sources, or more chunks at known ones. Changes
    nothing when the transfer has ended."""
    if transfer.status is not TransferStatus.RUNNING:
        return Turn(transfer=transfer)
    known = admit(transfer.sources, sources, transfer.lost)
    return _turn(msgspec.structs.replace(transfer, sources=known))


def advance(transfer: Transfer, completion: Completion) -> Turn:
    """The turn after a pull ended, or some of its chunks arrived. A completion of what is not in
    flight (a repeat) changes nothing; a chunk counts once."""
    pull = completion.pull
    if pull not in transfer.in_flight:
        return Turn(transfer=transfer)
    if isinstance(completion, Progressed):
        return _turn(_arrive(_hear(transfer, completion), pull, completion.arrived))
    arrived = pull.chunks if isinstance(completion, Completed) else completion.arrived
    fault = None if isinstance(completion, Completed) else completion.fault
    settled = _settle(transfer, pull, arrived, completion.holds, fault)
    left = tuple(p for p in transfer.in_flight if p.number != pull.number)
    return _turn(_arrive(msgspec.structs.replace(settled, in_flight=left), pull, arrived))


def _arrive(transfer: Transfer, pull: Pull, arrived: ChunkSet) -> Transfer:
    """Counts the chunks that were still missing."""
    new = transfer.missing & arrived
    return msgspec.structs.replace(
        transfer,
        transports=_count(transfer, pull, new),
        missing=transfer.missing - new,
        unreported=transfer.unreported | new,
    )


def _hear(transfer: Transfer, progressed: Progressed) -> Transfer:
    """The sources, with what the peer has by now."""
    held = progressed.arrived | (progressed.holds or ChunkSet())
    return msgspec.structs.replace(
        transfer,
        sources=tuple(
            grown(source, held) if source.life == progressed.pull.life else source
            for source in transfer.sources
        ),
    )


def _settle(
    transfer: Transfer,
    pull: Pull,
    arrived: ChunkSet,
    holds: ChunkSet | None,
    fault: Fault | None,
) -> Transfer:
    """The sources, and those that are lost, after one pull."""
    source = next((s for s in transfer.sources if s.life == pull.life), None)
    if source is None:
        return transfer
    kept = settle(
        source, arrived, holds, fault.kind if fault else None, pull.chunks, transfer.limits
    )
    others = tuple(s for s in transfer.sources if s.node != pull.peer)
    return msgspec.structs.replace(
        transfer,
        sources=others if kept is None else (*others, kept),
        lost=transfer.lost | ({pull.life} if kept is None else set()),
        fault=fault or transfer.fault,
    )


def _count(transfer: Transfer, pull: Pull, arrived: ChunkSet) -> dict[str, int]:
    """The bytes that each transport has moved, with those that arrived now."""
    moved = sum(_range(transfer.manifest, *run).size for run in arrived.ranges)
    if not moved:
        return transfer.transports
    before = transfer.transports.get(pull.transport, 0)
    return {**transfer.transports, pull.transport: before + moved}


def _turn(transfer: Transfer) -> Turn:
    """Ends the transfer, or posts what can be posted."""
    if not transfer.missing.ranges:
        return _ready(transfer)
    asked = ChunkSet.merge((p.first, p.stop) for p in transfer.in_flight)
    runs = choose_runs(
        transfer.sources,
        transfer.missing - asked,
        transfer.manifest.chunk_bytes,
        transfer.limits,
    )
    if not runs and not transfer.in_flight:
        return _failed(transfer)
    pulls = tuple(_pull(transfer, run, n) for n, run in enumerate(runs, transfer.pulls_posted))
    posted = msgspec.structs.replace(
        transfer,
        sources=_occupy(transfer.sources, runs),
        in_flight=(*transfer.in_flight, *pulls),
        pulls_posted=transfer.pulls_posted + len(pulls),
    )
    reported, events = _report(posted)
    return Turn(transfer=reported, pulls=pulls, events=events)


def _pull(transfer: Transfer, run: Run, number: int) -> Pull:
    where = _range(transfer.manifest, run.first, run.stop)
    digests = transfer.manifest.digests
    return Pull(
        number=number,
        peer=run.node,
        epoch=run.epoch,
        artifact=transfer.target.artifact,
        first=run.first,
        stop=run.stop,
        source_range=where,
        target_range=where,
        chunk_bytes=transfer.manifest.chunk_bytes,
        digests=digests[run.first * CHUNK_DIGEST_BYTES : run.stop * CHUNK_DIGEST_BYTES],
        transport=run.transport,
        wait_s=transfer.limits.probe_wait_s if run.is_probe else 0.0,
    )


def _range(manifest: Manifest, first: int, stop: int) -> ByteRange:
    """The bytes of a run of chunks."""
    start = first * manifest.chunk_bytes
    end = chunk_range(stop - 1, manifest.size_bytes, manifest.chunk_bytes).end
    return ByteRange(start, end - start)


def _occupy(sources: tuple[Source, ...], runs: tuple[Run, ...]) -> tuple[Source, ...]:
    return tuple(
        msgspec.structs.replace(s, in_flight=s.in_flight + sum(r.node == s.node for r in runs))
        for s in sources
    )


def _report(transfer: Transfer) -> tuple[Transfer, tuple[Event, ...]]:
    """A ReplicaFilled when enough has arrived since the last one."""
    manifest, limits = transfer.manifest, transfer.limits
    every = max(
        -(-manifest.chunks_total // limits.reports_max),
        -(-limits.report_bytes_min // manifest.chunk_bytes),
    )
    if len(transfer.unreported) < every:
        return transfer, ()
    return _flush(transfer)


def _flush(transfer: Transfer) -> tuple[Transfer, tuple[Event, ...]]:
    if not transfer.unreported.ranges:
        return transfer, ()
    event = ReplicaFilled(
        replica=transfer.target.replica, epoch=transfer.target.epoch, chunks=transfer.unreported
    )
    return msgspec.structs.replace(transfer, unreported=ChunkSet()), (event,)


def _ready(transfer: Transfer) -> Turn:
    target = transfer.target
    events: list[Event] = [
        ReplicaReady(
            replica=target.replica,
            artifact=target.artifact,
            node=target.node,
            tier=Tier.DRAM,
            epoch=target.epoch,
            chunks_total=transfer.manifest.chunks_total,
        )
    ]
    if target.operation is not None:
        events.append(
            OperationSucceeded(
                operation=target.operation,
                epoch=target.epoch,
                bytes_moved=transfer.bytes_moved,
                transports=transfer.transports,
            )
        )
    done = msgspec.structs.replace(
        transfer, status=TransferStatus.READY, unreported=ChunkSet(), fault=None
    )
    return Turn(transfer=done, events=tuple(events))


def _failed(transfer: Transfer) -> Turn:
    target = transfer.target
    fault = _explain(transfer)
    flushed, events = _flush(transfer)
    if target.operation is not None:
        failed = OperationFailed(
            operation=target.operation,
            epoch=target.epoch,
            fault=fault,
            bytes_moved=transfer.bytes_moved,
        )
        events = (*events, failed)
    done = msgspec.structs.replace(flushed, status=TransferStatus.FAILED, fault=fault)
    return Turn(transfer=done, events=events)


def _explain(transfer: Transfer) -> Fault:
    """Why no source is left: the last fault of a peer, in the kind that tells what follows."""
    artifact, last = transfer.target.artifact, transfer.fault
    absent = explain_absence(artifact, transfer.missing, transfer.manifest)
    if last is None:
        return absent
    if last.kind is FaultKind.NOT_FOUND:
        return Fault(kind=absent.kind, detail=f"{absent.detail} Last: {last.detail}")
    kind = FaultKind.CORRUPT if last.kind is FaultKind.CORRUPT else FaultKind.UNAVAILABLE
    left = f"{len(transfer.missing)} of {transfer.manifest.chunks_total} chunks are missing"
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
