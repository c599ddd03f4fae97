"""One transfer as a pure machine: `begin` and `advance` say what to record and what to pull next.

The shell records `turn.events`, posts `turn.pulls`, waits for a completion and calls `advance`,
until `turn.status` is no longer RUNNING; it closes the channels of `turn.leaving`, whose pulls then
complete as broken. A pull that breaks is a completion like any other; so failover is a table test.
As long as the status is RUNNING a pull is in flight, or a source asked for a moment's rest. Time
comes in as a value: seconds of a clock that never goes back; `tick` lets time alone decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from tensorcast.movers.core.absence import explain_end, worse_of
from tensorcast.movers.core.laggards import Laggard, find_laggards, may_lag
from tensorcast.movers.core.sources import (
    End,
    Limits,
    Lives,
    Run,
    Source,
    admit,
    choose_runs,
    find_detours,
    hear_of,
    may_ask_more,
    occupy,
    settle,
)
from tensorcast.schema.chunks import ByteRange, ChunkSet, chunk_range
from tensorcast.schema.events import (
    Event,
    OperationFailed,
    OperationSucceeded,
    ReplicaFilled,
    ReplicaReady,
)
from tensorcast.schema.faults import Detour, Fault, FaultKind
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
    the node did). The memory that is filled begins with byte `base_bytes` of the byte space: 0,
    unless it is a window that moves over it."""

    artifact: ArtifactId
    node: NodeId
    epoch: Epoch
    operation: OperationId | None = None
    base_bytes: int = 0

    @property
    def replica(self) -> ReplicaId:
        return replica_id(self.artifact, self.node, Tier.DRAM)


class Pull(msgspec.Struct, frozen=True, kw_only=True):
    """Read chunks `first` .. `stop` - 1 of an artifact from `peer`: its `source_range` in the
    peer's byte space into `target_range` of ours. `number` is unique within its transfer;
    `digests` holds the 8-byte XXH3-64 digest of each chunk; the peer may hold its answer back for
    `wait_s` at each chunk that it does not have yet. Before it the peer was asked in vain
    `vain_before` times in a row."""

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
    vain_before: int = 0

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
_LIES = frozenset({FaultKind.CORRUPT, FaultKind.NOT_FOUND})
"""Faults after which a dropped source is not asked again."""


class TransferStatus(StrEnum):
    RUNNING = "running"
    READY = "ready"
    FAILED = "failed"


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """State of one transfer. `missing` includes what is in flight; `unreported` are chunks that
    arrived since the last ReplicaFilled, at `reported_s`; `transports` counts bytes by transport.
    Of the lives that are no sources any more, those that are `lost` may come back, those that are
    `banned` sent damaged bytes or contradicted themselves."""

    target: Target
    manifest: Manifest
    limits: Limits
    sources: tuple[Source, ...]
    missing: ChunkSet
    in_flight: tuple[Pull, ...] = ()
    unreported: ChunkSet = ChunkSet()
    reported_s: float = 0.0
    lost: Lives = frozenset()
    banned: Lives = frozenset()
    transports: dict[str, int] = {}
    detours: tuple[Detour, ...] = ()
    pulls_posted: int = 0
    fault: Fault | None = None
    status: TransferStatus = TransferStatus.RUNNING

    @property
    def bytes_moved(self) -> int:
        return sum(self.transports.values())


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """What the shell must do next: record these events, then post these pulls, and close the
    channels to the lives that are left."""

    transfer: Transfer
    pulls: tuple[Pull, ...] = ()
    events: tuple[Event, ...] = ()
    leaving: tuple[Laggard, ...] = ()

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
    at_s: float = 0.0,
) -> Turn:
    """The first turn: pulls of `missing` spread over `sources`; READY at once when nothing is
    missing, FAILED at once when there is no source."""
    transfer = Transfer(
        target=target,
        manifest=manifest,
        limits=limits,
        sources=admit((), sources, frozenset()),
        missing=missing,
        reported_s=at_s,
    )
    return _turn(transfer, at_s)


def learn(
    transfer: Transfer,
    sources: Sequence[Source],
    at_s: float = 0.0,
    forgiven: Lives = frozenset(),
) -> Turn:
    """The turn after news of the cluster: more sources, more chunks at known ones, other ranks.
    Lives that were lost are no sources again, except those that are `forgiven`. Changes nothing
    when the transfer has ended."""
    if transfer.status is not TransferStatus.RUNNING:
        return Turn(transfer=transfer)
    lost = transfer.lost - forgiven
    known = admit(transfer.sources, sources, lost | transfer.banned)
    return _turn(msgspec.structs.replace(transfer, sources=known, lost=lost), at_s)


def tick(transfer: Transfer, at_s: float) -> Turn:
    """The turn after some time in which nothing came: rests end, and sources that keep us waiting
    are left."""
    if transfer.status is not TransferStatus.RUNNING:
        return Turn(transfer=transfer)
    return _turn(transfer, at_s)


def revive(transfer: Transfer, sources: Sequence[Source], at_s: float = 0.0) -> Turn:
    """The turn of a transfer that failed, when there are sources that it has not tried: it goes on
    with those. Without any it stays as it is."""
    tried = transfer.lost | transfer.banned | {source.life for source in transfer.sources}
    new = [source for source in sources if source.life not in tried]
    if transfer.status is not TransferStatus.FAILED or not new:
        return Turn(transfer=transfer)
    known = admit(transfer.sources, new, frozenset())
    again = msgspec.structs.replace(transfer, sources=known, status=TransferStatus.RUNNING)
    return _turn(again, at_s)


def advance(transfer: Transfer, completion: Completion, at_s: float = 0.0) -> Turn:
    """The turn after a pull ended, or some of its chunks arrived. A completion of what is not in
    flight (a repeat) changes nothing; a chunk counts once."""
    pull = completion.pull
    if transfer.status is not TransferStatus.RUNNING or pull not in transfer.in_flight:
        return Turn(transfer=transfer)
    if isinstance(completion, Progressed):
        return _progress(transfer, completion, at_s)
    arrived = pull.chunks if isinstance(completion, Completed) else completion.arrived
    fault = None if isinstance(completion, Completed) else completion.fault
    heard = _hear(transfer, pull, arrived, None, at_s)
    settled = _settle(heard, pull, arrived, completion.holds, fault, at_s)
    left = tuple(p for p in transfer.in_flight if p.number != pull.number)
    return _turn(_arrive(msgspec.structs.replace(settled, in_flight=left), pull, arrived), at_s)


def _progress(transfer: Transfer, progressed: Progressed, at_s: float) -> Turn:
    """Most progress changes nothing but the counts: then nothing has to be decided."""
    pull, arrived = progressed.pull, progressed.arrived & progressed.pull.chunks
    heard = _hear(transfer, pull, arrived, progressed.holds, at_s)
    counted = _arrive(heard, pull, arrived)
    chunk_bytes, limits = transfer.manifest.chunk_bytes, transfer.limits
    is_news = may_ask_more(transfer.sources, counted.sources, chunk_bytes, limits)
    if not counted.missing.ranges or is_news:
        return _turn(counted, at_s)
    reported, events = _report(counted, at_s)
    return Turn(transfer=reported, events=events)


def _hear(
    transfer: Transfer, pull: Pull, arrived: ChunkSet, holds: ChunkSet | None, at_s: float
) -> Transfer:
    """The sources, with what has come from the peer of a pull and what it has by now."""
    new = arrived & transfer.missing
    size_bytes = len(new) * transfer.manifest.chunk_bytes
    held = arrived if holds is None else arrived | holds
    return msgspec.structs.replace(
        transfer,
        sources=tuple(
            hear_of(source, held, size_bytes, at_s) if source.life == pull.life else source
            for source in transfer.sources
        ),
    )


def _arrive(transfer: Transfer, pull: Pull, arrived: ChunkSet) -> Transfer:
    """Counts the chunks that were still missing."""
    new = transfer.missing & arrived
    return msgspec.structs.replace(
        transfer,
        transports=_count(transfer, pull, new),
        missing=transfer.missing - new,
        unreported=transfer.unreported | new,
    )


def _settle(
    transfer: Transfer,
    pull: Pull,
    arrived: ChunkSet,
    holds: ChunkSet | None,
    fault: Fault | None,
    at_s: float,
) -> Transfer:
    """The sources, and those that are lost, after one pull."""
    source = next((s for s in transfer.sources if s.life == pull.life), None)
    if source is None:
        return transfer  # left, or a new life has taken its place
    kind = fault.kind if fault else None
    worst = worse_of(transfer.fault, fault)
    end = End(
        arrived=arrived,
        holds=holds,
        fault=kind,
        asked=pull.chunks,
        vain_before=pull.vain_before,
        transport=pull.transport,
    )
    kept = settle(source, end, transfer.limits, at_s)
    if kept is not None:
        sources = tuple(kept if s.life == pull.life else s for s in transfer.sources)
        detours = (*transfer.detours, *find_detours(source, kept, fault))
        return msgspec.structs.replace(transfer, sources=sources, fault=worst, detours=detours)
    dropped = _drop(transfer, frozenset({pull.life}), is_banned=kind in _LIES)
    return msgspec.structs.replace(dropped, fault=worst)


def _drop(transfer: Transfer, lives: Lives, *, is_banned: bool = False) -> Transfer:
    """Without these lives as sources."""
    return msgspec.structs.replace(
        transfer,
        sources=tuple(s for s in transfer.sources if s.life not in lives),
        lost=transfer.lost if is_banned else transfer.lost | lives,
        banned=transfer.banned | lives if is_banned else transfer.banned,
    )


def _count(transfer: Transfer, pull: Pull, arrived: ChunkSet) -> dict[str, int]:
    """The bytes that each transport has moved, with those that arrived now."""
    moved = sum(_range(transfer.manifest, *run).size for run in arrived.ranges)
    if not moved:
        return transfer.transports
    before = transfer.transports.get(pull.transport, 0)
    return {**transfer.transports, pull.transport: before + moved}


def _turn(transfer: Transfer, at_s: float) -> Turn:
    """Ends the transfer, or posts what can be posted."""
    if not transfer.missing.ranges:
        return _ready(transfer)
    unasked = _unasked(transfer)
    leaving: tuple[Laggard, ...] = ()
    if may_lag(transfer.sources, transfer.limits, at_s, is_all_asked=not unasked.ranges):
        leaving, transfer = _leave(transfer, at_s, is_all_asked=not unasked.ranges)
    chunk_bytes = transfer.manifest.chunk_bytes
    runs = choose_runs(transfer.sources, unasked, chunk_bytes, transfer.limits, at_s)
    if not runs and not transfer.in_flight and not _is_resting(transfer, at_s):
        return _failed(transfer)
    pulls = tuple(_pull(transfer, run, n) for n, run in enumerate(runs, transfer.pulls_posted))
    posted = msgspec.structs.replace(
        transfer,
        sources=occupy(transfer.sources, runs, at_s),
        in_flight=(*transfer.in_flight, *pulls),
        pulls_posted=transfer.pulls_posted + len(pulls),
    )
    reported, events = _report(posted, at_s)
    return Turn(transfer=reported, pulls=pulls, events=events, leaving=leaving)


def _unasked(transfer: Transfer) -> ChunkSet:
    return transfer.missing - ChunkSet.merge((p.first, p.stop) for p in transfer.in_flight)


def _is_resting(transfer: Transfer, at_s: float) -> bool:
    return any(s.is_resting(at_s) and s.is_promising(transfer.limits) for s in transfer.sources)


def _leave(
    transfer: Transfer, at_s: float, *, is_all_asked: bool
) -> tuple[tuple[Laggard, ...], Transfer]:
    """The laggards, and the transfer without them; their pulls stay in flight until they end."""
    owed: dict[tuple[NodeId, Epoch], ChunkSet] = {}
    for pull in transfer.in_flight:
        owed[pull.life] = owed.get(pull.life, ChunkSet()) | (pull.chunks & transfer.missing)
    leaving = find_laggards(
        transfer.sources,
        owed,
        is_all_asked=is_all_asked,
        chunk_bytes=transfer.manifest.chunk_bytes,
        limits=transfer.limits,
        at_s=at_s,
    )
    if not leaving:
        return (), transfer
    return leaving, _drop(transfer, frozenset(one.life for one in leaving))


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
        target_range=ByteRange(where.offset - transfer.target.base_bytes, where.size),
        chunk_bytes=transfer.manifest.chunk_bytes,
        digests=digests[run.first * CHUNK_DIGEST_BYTES : run.stop * CHUNK_DIGEST_BYTES],
        transport=run.transport,
        wait_s=transfer.limits.probe_wait_s if run.waits else 0.0,
        vain_before=run.vain_before,
    )


def _range(manifest: Manifest, first: int, stop: int) -> ByteRange:
    """The bytes of a run of chunks."""
    start = first * manifest.chunk_bytes
    end = chunk_range(stop - 1, manifest.size_bytes, manifest.chunk_bytes).end
    return ByteRange(start, end - start)


def _report(transfer: Transfer, at_s: float) -> tuple[Transfer, tuple[Event, ...]]:
    """A ReplicaFilled when enough has arrived, and enough time has passed, since the last one."""
    manifest, limits = transfer.manifest, transfer.limits
    every = limits.chunks_a_report(manifest.chunks_total, manifest.chunk_bytes)
    is_soon = at_s < transfer.reported_s + limits.report_s
    if is_soon or len(transfer.unreported) < every:
        return transfer, ()
    flushed, events = _flush(transfer)
    return msgspec.structs.replace(flushed, reported_s=at_s), events


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
                detours=transfer.detours,
            )
        )
    done = msgspec.structs.replace(
        transfer, status=TransferStatus.READY, unreported=ChunkSet(), fault=None
    )
    return Turn(transfer=done, events=tuple(events))


def _failed(transfer: Transfer) -> Turn:
    target = transfer.target
    fault = explain_end(target.artifact, transfer.missing, transfer.manifest, transfer.fault)
    flushed, events = _flush(transfer)
    if target.operation is not None:
        failed = OperationFailed(
            operation=target.operation,
            epoch=target.epoch,
            fault=fault,
            bytes_moved=transfer.bytes_moved,
            transports=transfer.transports,
            detours=transfer.detours,
        )
        events = (*events, failed)
    done = msgspec.structs.replace(flushed, status=TransferStatus.FAILED, fault=fault)
    return Turn(transfer=done, events=events)
