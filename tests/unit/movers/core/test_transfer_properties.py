"""What is true of every transfer, whatever its peers do."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tensorcast.movers.core.sources import Source
from tensorcast.movers.core.transfer import (
    Completed,
    TransferStatus,
    advance,
    begin,
)
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.events import (
    OperationFailed,
    ReplicaFilled,
)
from tensorcast.schema.faults import FaultKind
from transfers import (
    LIMITS,
    TARGET,
    broken,
    manifest,
    ready,
)


class Peer:
    """A simulated source: what it has, whether it damages what it sends, when it dies."""

    def __init__(self, chunks, total, grows, damages, dies_after):
        self.chunks = set(chunks)
        self.total = total
        self.grows = grows
        self.damages = damages
        self.left = dies_after

    def answer(self, pull, bit):
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                keep = ChunkSet.of(c for c in pull.chunks if c in self.chunks and bit)
                return broken(pull, FaultKind.UNAVAILABLE, arrived=keep)
        if self.grows:
            self.chunks |= set(list(pull.chunks)[:1])
        has = [c for c in pull.chunks if c in self.chunks]
        holds = ChunkSet.of(self.chunks)
        good = ChunkSet.of(c for c in has if not (self.damages and c % 2 == bit))
        if len(good) < len(has):
            return broken(pull, FaultKind.CORRUPT, arrived=good, holds=holds)
        if len(has) < len(pull.chunks):
            return broken(pull, FaultKind.NOT_FOUND, arrived=good, holds=holds)
        return Completed(pull=pull, holds=holds)


@st.composite
def clusters(draw):
    total = draw(st.integers(1, 40))
    some = st.sets(st.integers(0, total - 1))
    peers, sources = {}, []
    for n in range(draw(st.integers(0, 4))):
        is_filling = draw(st.booleans())
        chunks = draw(some) if is_filling else set(range(total))
        peers[f"p{n}"] = Peer(
            chunks,
            total,
            grows=is_filling and draw(st.booleans()),
            damages=draw(st.booleans()),
            dies_after=draw(st.none() | st.integers(0, 10)),
        )
        known = chunks if draw(st.booleans()) or not is_filling else set()
        sources.append(Source(node=f"p{n}", chunks=ChunkSet.of(known), is_filling=is_filling))
    return total, ChunkSet.of(draw(some)), peers, sources


@given(clusters(), st.data())
def test_every_transfer_ends_and_fills_each_chunk_once(cluster, data):
    total, missing, peers, sources = cluster
    arrived: Counter[int] = Counter()
    reports: Counter[int] = Counter()
    turn = begin(TARGET, manifest(total), missing, sources, LIMITS)
    posted = list(turn.pulls)
    for _ in range(2000):
        for event in turn.events:
            if isinstance(event, ReplicaFilled):
                reports.update(event.chunks)
        flying = turn.transfer.in_flight
        asked = [c for p in flying for c in p.chunks]
        assert len(asked) == len(set(asked)), "a chunk is asked for twice"
        assert not set(asked) & set(arrived), "a chunk that arrived is asked for again"
        per_peer = Counter(p.peer for p in flying)
        assert all(n <= LIMITS.pulls_in_flight_max for n in per_peer.values())
        assert {p.number for p in posted} == {p.number for p in flying}
        if turn.status is not TransferStatus.RUNNING:
            break
        assert posted, "it runs, but nothing is in flight"
        pull = posted.pop(data.draw(st.integers(0, len(posted) - 1)))
        completion = peers[pull.peer].answer(pull, data.draw(st.integers(0, 1)))
        arrived.update(pull.chunks if isinstance(completion, Completed) else completion.arrived)
        turn = advance(turn.transfer, completion)
        posted += turn.pulls
    assert not turn.transfer.in_flight
    assert set(arrived.values()) <= {1}
    assert set(reports.values()) <= {1}
    if turn.status is TransferStatus.READY:
        assert set(arrived) == set(missing)
    else:
        assert turn.status is TransferStatus.FAILED
        assert set(reports) == set(arrived) < set(missing)
        assert turn.events[-1] == OperationFailed(
            operation="op-1",
            epoch=3,
            fault=turn.fault,
            bytes_moved=turn.transfer.bytes_moved,
            transports=turn.transfer.transports,
            detours=turn.transfer.detours,
        )


@given(clusters(), st.data())
def test_one_sound_source_is_enough(cluster, data):
    total, missing, peers, sources = cluster
    peers["sound"] = Peer(set(range(total)), total, grows=False, damages=False, dies_after=None)
    turn = begin(TARGET, manifest(total), missing, [*sources, ready("sound", total)], LIMITS)
    while turn.status is TransferStatus.RUNNING:
        flying = turn.transfer.in_flight
        pull = flying[data.draw(st.integers(0, len(flying) - 1))]
        completion = peers[pull.peer].answer(pull, data.draw(st.integers(0, 1)))
        turn = advance(turn.transfer, completion)
    assert turn.status is TransferStatus.READY
