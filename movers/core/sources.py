"""Which peer is asked for which run of chunks, and what becomes of peers that fail. Pure.

A source is `known` to hold some chunks. A replica that is still filling may hold more than is
known: when nothing else is left to ask for, it is probed (one pull at a time, which the peer may
hold back for a moment until the chunk has arrived), and each answer of a peer tells what it holds
by then. So a chain of filling replicas keeps moving without asking the log. A peer that was probed
in vain too often is left alone until it is heard of holding more: of several replicas that wait for
each other, none ever gets anything.

The log may say that a replica is ready, and its peer that it holds less: then the peer has just
started and is still checking its bytes. It gets more patience.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.faults import FaultKind
from tensorcast.schema.ids import Epoch, NodeId

Lives = frozenset[tuple[NodeId, Epoch]]
"""Lives of nodes: one that was started again is another source than before."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one transfer. `pulls_in_flight_max` is per source; `run_bytes_max` is the size of
    one pull (at least one chunk); a source is dropped after `corrupt_max` chunks that failed their
    digest, and left alone after `probes_fruitless_max` probes in a row without a new chunk
    (`checks_fruitless_max` while it checks its bytes); a probe may be held back for
    `probe_wait_s`; a transfer reports its progress at most `reports_max` times and not more often
    than every `report_bytes_min`."""

    pulls_in_flight_max: int = 4
    run_bytes_max: int = 8 << 20
    corrupt_max: int = 2
    probes_fruitless_max: int = 3
    checks_fruitless_max: int = 20
    probe_wait_s: float = 1.0
    reports_max: int = 32
    report_bytes_min: int = 64 << 20


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A life of a peer that has a replica: the chunks it is known to hold, whether more may come
    (`is_filling`), and the transport that reaches it. `promised` are those that it has by the log,
    when it says itself that it holds less."""

    node: NodeId
    chunks: ChunkSet
    epoch: Epoch = Epoch(0)
    is_filling: bool = False
    promised: ChunkSet = ChunkSet()
    transport: str = "tcp"
    corrupt: int = 0
    fruitless: int = 0
    in_flight: int = 0

    @property
    def life(self) -> tuple[NodeId, Epoch]:
        return self.node, self.epoch

    def is_promising(self, limits: Limits) -> bool:
        """Whether it is worth asking for chunks that it is not known to hold."""
        if self.promised.ranges:
            return self.fruitless < limits.checks_fruitless_max
        return self.is_filling and self.fruitless < limits.probes_fruitless_max


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive chunks `first` .. `stop` - 1 to be asked of one source; a probe asks for chunks
    that the source is not known to hold."""

    node: NodeId
    first: int
    stop: int
    epoch: Epoch = Epoch(0)
    transport: str = "tcp"
    is_probe: bool = False


def admit(known: Sequence[Source], found: Iterable[Source], lost: Lives) -> tuple[Source, ...]:
    """The sources after news of the cluster: what is known of a peer only grows, a life that was
    dropped stays dropped, and a new life takes the place of the one before."""
    merged = {source.node: source for source in known}
    for source in found:
        if source.life not in lost:
            merged[source.node] = _merge(merged.get(source.node), source)
    return tuple(merged.values())


def _merge(known: Source | None, found: Source) -> Source:
    if known is None or found.epoch > known.epoch:
        return msgspec.structs.replace(found, corrupt=0, fruitless=0, in_flight=0)
    is_checking = bool(known.promised.ranges)
    if found.epoch < known.epoch or (is_checking and not found.is_filling):
        return known  # what it says itself is newer than what the log says of it
    is_filling = found.is_filling and (known.is_filling or is_checking)
    heard = msgspec.structs.replace(known, is_filling=is_filling, promised=ChunkSet())
    return grown(heard, found.chunks)


def grown(source: Source, chunks: ChunkSet) -> Source:
    """The source holds these chunks too; with a new one, probing it is worth while again."""
    is_news = bool((chunks - source.chunks).ranges)
    return msgspec.structs.replace(
        source,
        chunks=source.chunks | chunks,
        fruitless=0 if is_news else source.fruitless,
    )


def choose_runs(
    sources: Sequence[Source], wanted: ChunkSet, chunk_bytes: int, limits: Limits
) -> tuple[Run, ...]:
    """What to ask of whom now, so that every source is busy: each chunk at most once, the source
    with the fewest pulls in flight first, lowest chunks first. Runs get shorter towards the end so
    that all sources finish together."""
    runs: list[Run] = []
    busy = {source.node: source.in_flight for source in sources}
    length_max = max(1, limits.run_bytes_max // chunk_bytes)
    slots = max(1, len(sources) * limits.pulls_in_flight_max)
    while wanted.ranges:
        length = min(length_max, max(1, -(-len(wanted) // (2 * slots))))
        run = _next_run(sources, busy, wanted, length, limits)
        if run is None:
            break
        runs.append(run)
        busy[run.node] += 1
        wanted = wanted - ChunkSet(((run.first, run.stop),))
    return (*runs, *_probes(sources, busy, wanted, limits))


def _next_run(
    sources: Sequence[Source],
    busy: dict[NodeId, int],
    wanted: ChunkSet,
    length: int,
    limits: Limits,
) -> Run | None:
    free = [s for s in sources if busy[s.node] < limits.pulls_in_flight_max]
    for source in sorted(free, key=lambda s: busy[s.node]):
        held = wanted - (wanted - source.chunks)
        if held.ranges:
            first, stop = held.ranges[0]
            return _run(source, first, min(stop, first + length))
    return None


def _probes(
    sources: Sequence[Source], busy: dict[NodeId, int], wanted: ChunkSet, limits: Limits
) -> tuple[Run, ...]:
    """One chunk for each idle source that may get it soon."""
    runs: list[Run] = []
    for source in sources:
        rest = wanted - source.chunks
        if source.is_promising(limits) and busy[source.node] == 0 and rest.ranges:
            chunk = rest.ranges[0][0]
            runs.append(_run(source, chunk, chunk + 1, is_probe=True))
            wanted = wanted - ChunkSet(((chunk, chunk + 1),))
    return tuple(runs)


def _run(source: Source, first: int, stop: int, *, is_probe: bool = False) -> Run:
    return Run(
        node=source.node,
        epoch=source.epoch,
        first=first,
        stop=stop,
        transport=source.transport,
        is_probe=is_probe,
    )


def settle(
    source: Source,
    arrived: ChunkSet,
    holds: ChunkSet | None,
    fault: FaultKind | None,
    asked: ChunkSet,
    limits: Limits,
) -> Source | None:
    """What is known of a source after one of its pulls ended; None when it is dropped.

    `holds` is what it says it holds (None: it did not say).
    """
    source = msgspec.structs.replace(source, in_flight=source.in_flight - 1)
    known = grown(source, arrived | (holds or ChunkSet()))
    match fault:
        case None if holds is None:  # it would tell if it did not hold everything
            return grown(msgspec.structs.replace(known, promised=ChunkSet()), source.promised)
        case None:
            return known
        case FaultKind.CORRUPT:
            known = msgspec.structs.replace(known, corrupt=known.corrupt + 1)
            return known if known.corrupt <= limits.corrupt_max else None
        case FaultKind.NOT_FOUND if source.is_filling or arrived.ranges or holds is not None:
            return _disappointing(source, known, arrived, holds, asked, limits)
        case _:
            return None


def _disappointing(
    source: Source,
    known: Source,
    arrived: ChunkSet,
    holds: ChunkSet | None,
    asked: ChunkSet,
    limits: Limits,
) -> Source | None:
    """The source, which did not hold all that it was asked for."""
    fruitless = known.fruitless + (known.chunks == source.chunks)
    if fruitless > limits.checks_fruitless_max:
        return None  # it contradicts itself
    if holds is None:
        left = known.chunks - (asked - arrived)
        return msgspec.structs.replace(known, chunks=left, fruitless=fruitless)
    return msgspec.structs.replace(
        known,
        chunks=holds | arrived,
        promised=ChunkSet() if source.is_filling else source.promised | source.chunks,
        fruitless=fruitless,
    )
