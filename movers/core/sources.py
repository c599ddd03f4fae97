"""Which peer is asked for which run of chunks, and what becomes of peers that fail. Pure.

Sources have ranks. Those of the first rank that can deliver are asked, all of them at once, each
for runs as long as its pace allows; the next rank is asked only for chunks that no source of a
better one has or is getting. So a planned chain stays a chain, and is left when it breaks.

A source is `known` to hold some chunks. A replica that is still filling gets more than is known:
when its rank has nothing else it is asked for long runs ahead of what it holds, and sends each
chunk as it comes (`waits`); a plan may name one that has not even begun (`is_coming`). Each answer
of a peer tells what it holds by then. So a chain of filling replicas keeps moving without asking
the log. A peer that was asked in vain too often is left alone until it is heard of holding more: of
several replicas that wait for each other, none ever gets anything.

The log may say that a replica is ready, and its peer that it holds less: then the peer has just
started and is still checking its bytes. It gets more patience.

A peer that is on probation (`is_trusted` is false: it failed lately) gets one chunk to prove
itself, and nobody relies on it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from tensorcast.movers.core.pace import Pace, hear, resume
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.faults import Detour, Fault, FaultKind
from tensorcast.schema.ids import Epoch, NodeId

Lives = frozenset[tuple[NodeId, Epoch]]
"""Lives of nodes: one that was started again is another source than before."""


LONE_PIECES: Final = 4
"""What remains is cut into so many runs when there is one source: its connections share them."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one transfer.

    What is asked: a source has at most `pulls_in_flight_max` pulls in flight, and not much more
    than it sends in `ahead_s`. A pull is as long as what it sends in `run_s`, at most
    `run_bytes_max`, `run_bytes_first` as long as its pace is not known; and not shorter than
    `run_bytes_min` when it is the only one; one chunk at least. Short runs keep the order in which
    the nodes of a chain get their chunks alike, so that none waits for what the one before it asks
    for last.

    When a source is given up: it is dropped after `corrupt_max` chunks that failed their digest,
    and left alone after `probes_fruitless_max` pulls in a row that waited without a new chunk
    (`checks_fruitless_max` while it checks its bytes, `absences_max` while it has not begun, with
    rests that double from `absent_rest_s` on). Each chunk that is waited for may be held back for
    `probe_wait_s`. A source that says nothing for `stall_s` is left when another can do its work.

    What is told: progress at most `reports_max` times, and not more often than every
    `report_bytes_min` and every `report_s`: who pulls from us hears it from us, sooner."""

    pulls_in_flight_max: int = 16
    run_bytes_max: int = 32 << 20
    run_bytes_min: int = 2 << 20
    run_bytes_first: int = 4 << 20
    run_s: float = 0.03
    ahead_s: float = 0.5
    corrupt_max: int = 2
    probes_fruitless_max: int = 3
    checks_fruitless_max: int = 20
    absences_max: int = 6
    absent_rest_s: float = 0.02
    probe_wait_s: float = 1.0
    stall_s: float = 2.0
    reports_max: int = 32
    report_bytes_min: int = 64 << 20
    report_s: float = 0.1

    def chunks_a_report(self, chunks_total: int, chunk_bytes: int) -> int:
        """How many chunks must have come before they are worth a report."""
        return max(-(-chunks_total // self.reports_max), -(-self.report_bytes_min // chunk_bytes))


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A life of a peer that has a replica: the chunks it is known to hold, whether more may come
    (`is_filling`), and the transport that reaches it; when that fails, the first of the `fallbacks`
    takes its place. `promised` are those that it has by the log,
    when it says itself that it holds less. It is not asked before `rests_until_s`."""

    node: NodeId
    chunks: ChunkSet
    epoch: Epoch = Epoch(0)
    rank: int = 0
    is_filling: bool = False
    is_coming: bool = False
    is_trusted: bool = True
    has_delivered: bool = False
    promised: ChunkSet = ChunkSet()
    transport: str = "tcp"
    fallbacks: tuple[str, ...] = ()
    pace: Pace = Pace()
    corrupt: int = 0
    fruitless: int = 0
    in_flight: int = 0
    rests_until_s: float = 0.0

    @property
    def life(self) -> tuple[NodeId, Epoch]:
        return self.node, self.epoch

    def is_promising(self, limits: Limits) -> bool:
        """Whether it is worth asking for chunks that it is not known to hold."""
        if not self.is_trusted:
            return False
        if self.promised.ranges:
            return self.fruitless < limits.checks_fruitless_max
        if self.is_coming:
            return self.fruitless < limits.absences_max
        return self.is_filling and self.fruitless < limits.probes_fruitless_max

    def is_resting(self, at_s: float) -> bool:
        """Whether it asked for a moment before the next try."""
        return self.rests_until_s > at_s


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive chunks `first` .. `stop` - 1 to be asked of one source; it `waits` for chunks
    that the source is not known to hold, after it was asked in vain `vain_before` times."""

    node: NodeId
    first: int
    stop: int
    epoch: Epoch = Epoch(0)
    transport: str = "tcp"
    waits: bool = False
    vain_before: int = 0

    @property
    def chunks(self) -> ChunkSet:
        return ChunkSet(((self.first, self.stop),))


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
    ranked = msgspec.structs.replace(known, rank=found.rank)
    is_checking = bool(known.promised.ranges)
    if found.epoch < known.epoch:
        return known
    if is_checking and not found.is_filling:
        return ranked  # what it says itself is newer than what the log says of it
    is_filling = found.is_filling and (known.is_filling or is_checking)
    is_coming = known.is_coming and found.is_coming
    heard = msgspec.structs.replace(
        ranked,
        is_filling=is_filling,
        is_coming=is_coming,
        promised=ChunkSet(),
        fruitless=known.fruitless if known.is_coming == is_coming else 0,
    )
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
    sources: Sequence[Source],
    wanted: ChunkSet,
    chunk_bytes: int,
    limits: Limits,
    at_s: float = 0.0,
) -> tuple[Run, ...]:
    """What to ask of whom now, so that every source worth asking is busy: each chunk at most once,
    the source with the fewest pulls in flight first, lowest chunks first. Runs get shorter towards
    the end so that all sources finish together."""
    runs: list[Run] = []
    for source in sources:
        held = wanted & source.chunks
        if not source.is_trusted and not source.in_flight and held.ranges:
            runs.append(_run(source, held.ranges[0][0], held.ranges[0][0] + 1))
            wanted = wanted - runs[-1].chunks
    trusted = [s for s in sources if s.is_trusted and not s.is_resting(at_s)]
    for rank in sorted({source.rank for source in sources}):
        if not wanted.ranges:
            break
        peers = [source for source in trusted if source.rank == rank]
        runs += _choose(peers, wanted, chunk_bytes, limits)
        if any(s.rank == rank and s.is_promising(limits) for s in sources):
            break  # it gets the rest
        for source in peers:
            wanted = wanted - source.chunks
    return tuple(runs)


def _choose(
    sources: Sequence[Source], wanted: ChunkSet, chunk_bytes: int, limits: Limits
) -> list[Run]:
    """The runs within one rank: first what is known to be there, then what will come."""
    runs: list[Run] = []
    busy = {source.node: source.in_flight for source in sources}
    rates = _rates(sources)
    for found in (_next_held, _next_coming):
        while wanted.ranges:
            run = found(sources, busy, wanted, rates, chunk_bytes, limits)
            if run is None:
                break
            runs.append(run)
            busy[run.node] += 1
            wanted = wanted - run.chunks
    return runs


def _rates(sources: Sequence[Source]) -> dict[NodeId, float]:
    """Bytes a second of each source; who is not known yet is taken for as fast as the others."""
    known = [source.pace.rate for source in sources if source.pace.rate]
    usual = sum(known) / len(known) if known else 1.0
    return {source.node: source.pace.rate or usual for source in sources}


def _length(
    source: Source, total: int, rates: dict[NodeId, float], chunk_bytes: int, limits: Limits
) -> int:
    """The chunks of its next run, when `total` are left: half of its share in what remains, cut
    into as many pulls as it has in flight. Into few, and the last ones not short, for a source that
    has nobody to share with: each is one more request that a chain of nodes waits for."""
    is_alone = len(rates) == 1
    share = rates[source.node] / sum(rates.values())
    most = limits.pulls_in_flight_max
    pieces = min(LONE_PIECES, most) if is_alone else most
    part = -(-total * share // (2 * pieces))
    least = limits.run_bytes_min // chunk_bytes if is_alone else 1
    return max(1, min(max(least, int(part)), _longest(source, chunk_bytes, limits)))


def _longest(source: Source, chunk_bytes: int, limits: Limits) -> int:
    """The chunks of a run at the source's pace."""
    size_bytes = source.pace.rate * limits.run_s or limits.run_bytes_first
    return max(1, int(min(size_bytes, limits.run_bytes_max) // chunk_bytes))


def slots(source: Source, chunk_bytes: int, limits: Limits) -> int:
    """How many pulls it may have in flight: two at least, and no more than it sends soon."""
    if not source.pace.rate:
        return limits.pulls_in_flight_max
    run_bytes = _longest(source, chunk_bytes, limits) * chunk_bytes
    wanted = math.ceil(source.pace.rate * limits.ahead_s / run_bytes)
    return min(limits.pulls_in_flight_max, max(2, wanted))


def may_ask_more(
    before: Sequence[Source], after: Sequence[Source], chunk_bytes: int, limits: Limits
) -> bool:
    """Whether, after news of them, there may be more to ask for of a source that has room for more
    pulls."""
    return any(
        old is not new
        and (old.is_trusted != new.is_trusted or old.chunks is not new.chunks)
        and new.in_flight < slots(new, chunk_bytes, limits)
        for old, new in zip(before, after, strict=True)
    )


def _next_held(
    sources: Sequence[Source],
    busy: dict[NodeId, int],
    wanted: ChunkSet,
    rates: dict[NodeId, float],
    chunk_bytes: int,
    limits: Limits,
) -> Run | None:
    """A run of chunks that the least busy source holds; one that is filling sends on what follows
    them as it comes, unless another has that."""
    free = [s for s in sources if busy[s.node] < slots(s, chunk_bytes, limits)]
    for source in sorted(free, key=lambda s: busy[s.node]):
        held = wanted & source.chunks
        if held.ranges:
            first, end = held.ranges[0]
            length = _length(source, len(wanted), rates, chunk_bytes, limits)
            if end - first < length and source.is_promising(limits):
                ahead = wanted - _held(sources)
                end = next((b for a, b in ahead.ranges if a == end), end)
            stop = min(end, first + length)
            return _run(source, first, stop, waits=stop > held.ranges[0][1])
    return None


def _next_coming(
    sources: Sequence[Source],
    busy: dict[NodeId, int],
    wanted: ChunkSet,
    rates: dict[NodeId, float],
    chunk_bytes: int,
    limits: Limits,
) -> Run | None:
    """A run of chunks that a source will get: a long one when no other of its rank has them, else
    one chunk of an idle source, to hear from it."""
    held = _held(sources)
    free = [
        s
        for s in sources
        if s.is_promising(limits)
        and busy[s.node] < (1 if s.is_coming else slots(s, chunk_bytes, limits))
    ]
    for source in sorted(free, key=lambda s: busy[s.node]):
        ahead = wanted - held
        if ahead.ranges:
            first, stop = ahead.ranges[0]
            length = _length(source, len(wanted), rates, chunk_bytes, limits)
            return _run(source, first, min(stop, first + length), waits=True)
        rest = wanted - source.chunks
        if busy[source.node] == 0 and rest.ranges:
            return _run(source, rest.ranges[0][0], rest.ranges[0][0] + 1, waits=True)
    return None


def _held(sources: Sequence[Source]) -> ChunkSet:
    """What any of them has."""
    return ChunkSet.merge(r for source in sources for r in source.chunks.ranges)


def _run(source: Source, first: int, stop: int, *, waits: bool = False) -> Run:
    return Run(
        node=source.node,
        epoch=source.epoch,
        first=first,
        stop=stop,
        transport=source.transport,
        waits=waits,
        vain_before=source.fruitless,
    )


def occupy(sources: Sequence[Source], runs: Sequence[Run], at_s: float = 0.0) -> tuple[Source, ...]:
    """The sources, with these runs in flight."""
    added = Counter(run.node for run in runs)
    return tuple(_occupied(s, added[s.node], at_s) if added[s.node] else s for s in sources)


def _occupied(source: Source, runs: int, at_s: float) -> Source:
    pace = source.pace if source.in_flight else resume(source.pace, at_s)
    return msgspec.structs.replace(source, in_flight=source.in_flight + runs, pace=pace)


def hear_of(source: Source, held: ChunkSet, size_bytes: int, at_s: float) -> Source:
    """What is known of a source when `size_bytes` have come from it and it holds these chunks. It
    keeps its word: so it is trusted."""
    pace = hear(source.pace, size_bytes, at_s)
    is_new = bool(held.ranges) and bool((held - source.chunks).ranges)
    known = grown(source, held) if is_new else source
    return msgspec.structs.replace(
        known,
        pace=pace,
        is_trusted=source.is_trusted or size_bytes > 0,
        has_delivered=source.has_delivered or size_bytes > 0,
        is_coming=source.is_coming and not is_new,
    )


def next_rest_s(sources: Sequence[Source], at_s: float) -> float:
    """The seconds until a source that asked for a rest may be asked again; infinite when there is
    none."""
    rests = [source.rests_until_s - at_s for source in sources if source.is_resting(at_s)]
    return min(rests, default=float("inf"))


class End(msgspec.Struct, frozen=True, kw_only=True):
    """How a pull ended: what was asked and what came, what the source says it holds (None: it did
    not say), the kind of fault if there was one, and the transport. Before the pull was posted the
    source had been asked in vain `vain_before` times in a row."""

    asked: ChunkSet
    arrived: ChunkSet = ChunkSet()
    holds: ChunkSet | None = None
    fault: FaultKind | None = None
    vain_before: int = 0
    transport: str = "tcp"


def settle(source: Source, end: End, limits: Limits, at_s: float = 0.0) -> Source | None:
    """What is known of a source after one of its pulls ended; None when it is dropped."""
    source = msgspec.structs.replace(source, in_flight=source.in_flight - 1)
    known = grown(source, end.arrived | (end.holds or ChunkSet()))
    match end.fault:
        case None if end.holds is None:  # it would tell if it did not hold everything
            return grown(msgspec.structs.replace(known, promised=ChunkSet()), source.promised)
        case None:
            return known
        case FaultKind.CORRUPT:
            known = msgspec.structs.replace(known, corrupt=known.corrupt + 1)
            return known if known.corrupt <= limits.corrupt_max else None
        case FaultKind.NOT_FOUND if (
            source.is_filling or end.arrived.ranges or end.holds is not None
        ):
            return _disappointing(source, known, end, limits, at_s)
        case _ if end.transport != source.transport:
            return known  # it is reached in another way by now
        case _ if source.fallbacks:
            return msgspec.structs.replace(
                known, transport=source.fallbacks[0], fallbacks=source.fallbacks[1:], pace=Pace()
            )
        case _:
            return None


def find_detours(before: Source, after: Source, fault: Fault | None) -> tuple[Detour, ...]:
    """What is told of a source that is reached in another way after this fault."""
    if fault is None or before.transport == after.transport:
        return ()
    return (
        Detour(peer=before.node, before=before.transport, after=after.transport, why=fault.detail),
    )


def _disappointing(
    source: Source, known: Source, end: End, limits: Limits, at_s: float
) -> Source | None:
    """The source, which did not hold all that it was asked for. Pulls that waited side by side
    count once."""
    fruitless = known.fruitless
    if known.chunks == source.chunks:
        fruitless = max(fruitless, end.vain_before + 1)
    if fruitless > limits.checks_fruitless_max:
        return None  # it contradicts itself
    if end.holds is None:
        rest_s = limits.absent_rest_s * 2 ** (fruitless - 1) if source.is_coming else 0.0
        return msgspec.structs.replace(
            known,
            chunks=known.chunks - (end.asked - end.arrived),
            fruitless=fruitless,
            rests_until_s=at_s + rest_s,
        )
    return msgspec.structs.replace(
        known,
        chunks=end.holds | end.arrived,
        is_coming=False,
        promised=ChunkSet() if source.is_filling else source.promised | source.chunks,
        fruitless=fruitless,
    )
