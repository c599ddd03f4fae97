"""Which peer is asked for which run of chunks, and what becomes of peers that fail. Pure.

A source is `known` to hold some chunks. A replica that is still filling may hold more than is
known: when nothing else is left to ask for, it is probed (one pull at a time, which the peer may
hold back for a moment until the chunk has arrived), and each answer of a peer tells what it holds
by then. So a chain of filling replicas keeps moving without asking the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.faults import FaultKind
from tensorcast.schema.ids import NodeId


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one transfer. `pulls_in_flight_max` is per source; `run_bytes_max` is the size of
    one pull (at least one chunk); a source is dropped after `corrupt_max` chunks that failed their
    digest, or after `probes_fruitless_max` probes in a row without a new chunk; a probe may be held
    back for `probe_wait_s`; a transfer reports its progress at most `reports_max` times and not
    more often than every `report_bytes_min`."""

    pulls_in_flight_max: int = 4
    run_bytes_max: int = 8 << 20
    corrupt_max: int = 2
    probes_fruitless_max: int = 30
    probe_wait_s: float = 1.0
    reports_max: int = 32
    report_bytes_min: int = 64 << 20


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A peer that has a replica: the chunks it is known to hold, whether more may come
    (`is_filling`), and the transport that reaches it."""

    node: NodeId
    chunks: ChunkSet
    is_filling: bool = False
    transport: str = "tcp"
    corrupt: int = 0
    fruitless: int = 0
    in_flight: int = 0


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive chunks `first` .. `stop` - 1 to be asked of one source; a probe asks for chunks
    that the source is not known to hold."""

    node: NodeId
    first: int
    stop: int
    transport: str = "tcp"
    is_probe: bool = False


def admit(
    known: Sequence[Source], found: Iterable[Source], lost: frozenset[NodeId]
) -> tuple[Source, ...]:
    """The sources after news of the cluster: what is known of a peer only grows, and a peer that
    was dropped stays dropped."""
    merged = {source.node: source for source in known}
    for source in found:
        if source.node not in lost:
            merged[source.node] = _merge(merged.get(source.node), source)
    return tuple(merged.values())


def _merge(known: Source | None, found: Source) -> Source:
    if known is None:
        return msgspec.structs.replace(found, corrupt=0, fruitless=0, in_flight=0)
    return msgspec.structs.replace(
        known,
        chunks=known.chunks | found.chunks,
        is_filling=known.is_filling and found.is_filling,
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
    return (*runs, *_probes(sources, busy, wanted))


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
    sources: Sequence[Source], busy: dict[NodeId, int], wanted: ChunkSet
) -> tuple[Run, ...]:
    """One chunk for each idle source that is still filling."""
    runs: list[Run] = []
    for source in sources:
        rest = wanted - source.chunks
        if source.is_filling and busy[source.node] == 0 and rest.ranges:
            chunk = rest.ranges[0][0]
            runs.append(_run(source, chunk, chunk + 1, is_probe=True))
            wanted = wanted - ChunkSet(((chunk, chunk + 1),))
    return tuple(runs)


def _run(source: Source, first: int, stop: int, *, is_probe: bool = False) -> Run:
    return Run(
        node=source.node, first=first, stop=stop, transport=source.transport, is_probe=is_probe
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
    chunks = source.chunks | arrived | (holds or ChunkSet())
    fruitless = 0 if arrived.ranges else source.fruitless
    corrupt = source.corrupt
    match fault:
        case None:
            pass
        case FaultKind.CORRUPT:
            corrupt += 1
        case FaultKind.NOT_FOUND if source.is_filling or arrived.ranges or holds is not None:
            fruitless += 0 if arrived.ranges else 1
            chunks = (holds | arrived) if holds is not None else chunks - (asked - arrived)
        case _:
            return None
    if corrupt > limits.corrupt_max or fruitless > limits.probes_fruitless_max:
        return None
    return msgspec.structs.replace(
        source,
        chunks=chunks,
        corrupt=corrupt,
        fruitless=fruitless,
        in_flight=source.in_flight - 1,
    )
