from math import inf, nan
from typing import get_args

import msgspec
import pytest

from laws import check_law
from samples import BEGIN, N1, artifact_id, record, record_all
from tensorcast.schema.aggregates.lease import (
    TRANSITIONS,
    TTL_S_MAX,
    TTL_S_MIN,
    LeaseStatus,
    decide,
    evolve,
)
from tensorcast.schema.commands import AcquireLease, ExpireLease, ReleaseLease
from tensorcast.schema.errors import InvalidArgument, NotFound, Rejected
from tensorcast.schema.events import LeaseAcquired, LeaseEvent, LeaseExpired, LeaseReleased

A = artifact_id("a")
FIELDS = {"lease": "l1", "artifact": A, "node": N1, "holder": "user:ada@desk", "ttl_s": 30.0}
ACQUIRE, ACQUIRED = AcquireLease(**FIELDS), LeaseAcquired(**FIELDS)
RELEASE, RELEASED = ReleaseLease(lease="l1"), LeaseReleased(lease="l1")
EXPIRE, EXPIRED = (cls(lease="l1", last_seen=BEGIN) for cls in (ExpireLease, LeaseExpired))


def fold(*events):
    state = None
    for recorded in record_all(events):
        state = evolve(state, recorded, recorded.event)
    return state


@pytest.mark.parametrize(
    ("history", "command", "events"),
    [
        ((), ACQUIRE, (ACQUIRED,)),
        ((ACQUIRED,), ACQUIRE, ()),
        ((ACQUIRED,), RELEASE, (RELEASED,)),
        ((ACQUIRED,), EXPIRE, (EXPIRED,)),
        *(((ACQUIRED, end), c, ()) for end in (RELEASED, EXPIRED) for c in (RELEASE, EXPIRE)),
    ],
)
def test_decisions(history, command, events):
    assert decide(fold(*history), command) == events


@pytest.mark.parametrize(
    ("history", "command", "error", "why"),
    [
        ((), RELEASE, NotFound, "no lease"),
        ((), EXPIRE, NotFound, "no lease"),
        ((ACQUIRED, RELEASED), ACQUIRE, Rejected, "cannot follow"),
        ((ACQUIRED, EXPIRED), ACQUIRE, Rejected, "cannot follow"),
    ],
)
def test_refusals(history, command, error, why):
    with pytest.raises(error, match=why):
        decide(fold(*history), command)


@pytest.mark.parametrize("ttl_s", [0, -1, TTL_S_MIN / 2, TTL_S_MAX * 2, nan, inf])
def test_times_to_live_that_cannot_be(ttl_s):
    with pytest.raises(InvalidArgument, match="out of range"):
        decide(None, msgspec.structs.replace(ACQUIRE, ttl_s=ttl_s))


def test_what_the_events_leave():
    state = fold(ACQUIRED, RELEASED)
    assert (state.id, state.artifact, state.node, state.holder) == ("l1", A, N1, "user:ada@desk")
    assert (state.ttl_s, state.version) == (30.0, 2)
    assert state.acquired_at == record(ACQUIRED, 1).at


STATES = {
    None: (),
    LeaseStatus.HELD: (ACQUIRED,),
    LeaseStatus.RELEASED: (ACQUIRED, RELEASED),
    LeaseStatus.EXPIRED: (ACQUIRED, EXPIRED),
}
EVENTS = [ACQUIRED, RELEASED, EXPIRED]


@pytest.mark.parametrize("status", STATES)
@pytest.mark.parametrize("event", EVENTS)
def test_the_table_is_the_law(status, event):
    check_law(evolve, fold(*STATES[status]), event, TRANSITIONS.get((status, type(event))))


def test_the_list_above_holds_every_event():
    assert {type(event) for event in EVENTS} == set(get_args(LeaseEvent))
