from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laws import check_law
from samples import N1, artifact_id, record, record_all
from strategies import chunk_sets
from tensorcast.schema.aggregates.replica import TRANSITIONS, ReplicaStatus, decide, evolve
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.commands import (
    CompleteReplica,
    CorruptReplica,
    DropReplica,
    EvictReplica,
    FillReplica,
    LoseReplica,
    StartReplica,
)
from tensorcast.schema.errors import InvalidArgument, NotFound, Rejected
from tensorcast.schema.events import (
    ReplicaCorrupted,
    ReplicaEvent,
    ReplicaEvicting,
    ReplicaFilled,
    ReplicaGone,
    ReplicaLost,
    ReplicaReady,
    ReplicaStarted,
)
from tensorcast.schema.ids import Tier, replica_id

A = artifact_id("a")
R = replica_id(A, N1, Tier.DRAM)
TOTAL = 4


def whole(cls, epoch=1):
    """A message that carries the identity of the replica."""
    return cls(replica=R, artifact=A, node=N1, tier=Tier.DRAM, epoch=epoch, chunks_total=TOTAL)


def filled(*chunks, cls=ReplicaFilled, epoch=1):
    return cls(replica=R, epoch=epoch, chunks=ChunkSet.of(chunks))


def corrupted(*chunks, cls=ReplicaCorrupted, epoch=1):
    return cls(replica=R, epoch=epoch, chunks=ChunkSet.of(chunks), detail="bit rot")


def ended(cls, epoch=1):
    words = {
        ReplicaEvicting: {"reason": "full"},
        EvictReplica: {"reason": "full"},
        ReplicaLost: {"detail": "wiped"},
        LoseReplica: {"detail": "wiped"},
    }
    return cls(replica=R, epoch=epoch, **words.get(cls, {}))


STARTED, READY = whole(ReplicaStarted), whole(ReplicaReady)
EVICTING, GONE, LOST = ended(ReplicaEvicting), ended(ReplicaGone), ended(ReplicaLost)
START, COMPLETE = whole(StartReplica), whole(CompleteReplica)
EVICT, DROP, LOSE = ended(EvictReplica), ended(DropReplica), ended(LoseReplica)
FILL, CORRUPT = filled(0, 1, cls=FillReplica), corrupted(1, cls=CorruptReplica)


def fold(*events):
    state = None
    for recorded in record_all(events):
        state = evolve(state, recorded, recorded.event)
    return state


@pytest.mark.parametrize(
    ("history", "command", "events"),
    [
        ((), START, (STARTED,)),
        ((STARTED,), START, ()),
        ((STARTED,), whole(StartReplica, 2), (whole(ReplicaStarted, 2),)),
        ((READY,), START, ()),
        ((STARTED, GONE), START, (STARTED,)),
        ((READY, LOST), START, (STARTED,)),
        ((), COMPLETE, (READY,)),
        ((STARTED,), COMPLETE, (READY,)),
        ((READY,), COMPLETE, ()),
        ((READY, LOST), COMPLETE, (READY,)),
        ((STARTED, GONE), COMPLETE, (READY,)),
        ((STARTED,), FILL, (filled(0, 1),)),
        ((STARTED, filled(0, 1, 2)), FILL, ()),
        ((STARTED, filled(0)), FILL, (filled(0, 1),)),
        ((STARTED, filled(0, 1)), CORRUPT, (corrupted(1),)),
        ((STARTED, filled(0)), CORRUPT, ()),
        ((READY,), CORRUPT, (corrupted(1),)),
        ((READY,), corrupted(cls=CorruptReplica), ()),
        ((STARTED,), EVICT, (EVICTING,)),
        ((READY,), EVICT, (EVICTING,)),
        ((READY, EVICTING), EVICT, ()),
        ((READY, EVICTING), DROP, (GONE,)),
        ((STARTED,), DROP, (GONE,)),
        ((STARTED,), LOSE, (LOST,)),
        ((READY,), LOSE, (LOST,)),
        ((READY, EVICTING), LOSE, (LOST,)),
        *((h, c, ()) for h in ((), (READY, LOST), (STARTED, GONE)) for c in (EVICT, DROP, LOSE)),
    ],
)
def test_decisions(history, command, events):
    assert decide(fold(*history), command) == events


@pytest.mark.parametrize(
    ("history", "command", "error", "why"),
    [
        ((), FILL, NotFound, "no replica"),
        ((), CORRUPT, NotFound, "no replica"),
        ((STARTED,), filled(TOTAL, cls=FillReplica), InvalidArgument, "has 4 chunks"),
        ((READY,), FILL, Rejected, "is ready"),
        ((READY,), DROP, Rejected, "is ready"),
        ((READY, EVICTING), FILL, Rejected, "is evicting"),
        ((READY, EVICTING), CORRUPT, Rejected, "is evicting"),
        ((READY, EVICTING), START, Rejected, "is evicting"),
        ((READY, EVICTING), COMPLETE, Rejected, "is evicting"),
        ((STARTED, GONE), FILL, Rejected, "is gone"),
        ((READY, LOST), CORRUPT, Rejected, "is lost"),
        *(
            ((whole(ReplicaStarted, 2),), c, Rejected, "epoch 1 is stale")
            for c in (START, COMPLETE, FILL, CORRUPT, EVICT, DROP, LOSE)
        ),
    ],
)
def test_refusals(history, command, error, why):
    with pytest.raises(error, match=why):
        decide(fold(*history), command)


def test_what_the_events_leave():
    state = fold(STARTED, filled(0, 1), filled(3))
    assert (state.id, state.artifact, state.node, state.tier) == (R, A, N1, Tier.DRAM)
    assert list(state.chunks) == [0, 1, 3]
    assert (state.chunks_total, state.version) == (TOTAL, 3)


@pytest.mark.parametrize(
    ("history", "chunks"),
    [
        ((READY,), range(TOTAL)),
        ((READY, corrupted(1)), [0, 2, 3]),
        ((READY, corrupted(1), filled(1)), range(TOTAL)),
        ((READY, EVICTING), range(TOTAL)),
        ((READY, EVICTING, GONE), []),
        ((READY, LOST), []),
        ((STARTED, filled(0), whole(ReplicaStarted, 2)), []),
    ],
)
def test_the_chunks_that_it_serves(history, chunks):
    assert list(fold(*history).chunks) == list(chunks)


def test_a_later_life_of_the_mover_fences_the_older():
    assert fold(STARTED, filled(0, epoch=3)).epoch == 3


STATES = {
    None: (),
    ReplicaStatus.FILLING: (STARTED,),
    ReplicaStatus.READY: (READY,),
    ReplicaStatus.EVICTING: (READY, EVICTING),
    ReplicaStatus.GONE: (STARTED, GONE),
    ReplicaStatus.LOST: (READY, LOST),
}
EVENTS = [STARTED, filled(0), READY, corrupted(0), EVICTING, GONE, LOST]
COMMANDS = [START, FILL, COMPLETE, CORRUPT, EVICT, DROP, LOSE]


@pytest.mark.parametrize("status", STATES)
@pytest.mark.parametrize("event", EVENTS)
def test_the_table_is_the_law(status, event):
    check_law(evolve, fold(*STATES[status]), event, TRANSITIONS.get((status, type(event))))


def test_the_list_above_holds_every_event():
    assert {type(event) for event in EVENTS} == set(get_args(ReplicaEvent))


@given(
    st.lists(
        st.sampled_from(COMMANDS)
        | chunk_sets(TOTAL).map(lambda c: FillReplica(replica=R, epoch=1, chunks=c))
        | chunk_sets(TOTAL).map(lambda c: CorruptReplica(replica=R, epoch=1, chunks=c, detail="")),
        max_size=20,
    )
)
def test_a_ready_replica_holds_every_chunk(commands):
    state = None
    for seq, command in enumerate(commands, 1):
        try:
            events = decide(state, command)
        except (Rejected, NotFound):
            continue
        for event in events:
            state = evolve(state, record(event, seq), event)
        if state and state.status is ReplicaStatus.READY:
            assert state.chunks == ChunkSet.full(TOTAL)
        if state:
            assert set(state.chunks) <= set(range(TOTAL))
