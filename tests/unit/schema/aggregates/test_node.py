from typing import get_args

import msgspec
import pytest

from laws import check_law
from samples import N1, record_all
from tensorcast.schema.aggregates.node import TRANSITIONS, NodeStatus, decide, evolve
from tensorcast.schema.commands import (
    CordonNode,
    DrainNode,
    JoinNode,
    LeaveNode,
    LoseNode,
    ReportPressure,
    ReportRelief,
    UncordonNode,
)
from tensorcast.schema.errors import NotFound, Rejected
from tensorcast.schema.events import (
    NodeCordoned,
    NodeDrained,
    NodeEvent,
    NodeJoined,
    NodeLeft,
    NodeLost,
    NodePressured,
    NodeRelieved,
    NodeUncordoned,
)
from tensorcast.schema.ids import Overflow, Tier


def life(epoch, cls=NodeJoined):
    return cls(
        node=N1,
        epoch=epoch,
        address="127.0.0.1:7000",
        tiers={Tier.DRAM: 1 << 30},
        transports=("tcp",),
        labels={"rack": "7"},
        overflow=Overflow.EVICT,
    )


PRESSURE = {
    "node": N1,
    "epoch": 1,
    "tier": Tier.DRAM,
    "needed_bytes": 5,
    "candidates": ("a:n1:dram",),
}
RELIEF = {
    "node": N1,
    "epoch": 1,
    "tier": Tier.DRAM,
    "free_bytes": 7,
    "candidates": ("a:n1:disk",),
}
JOINED, JOINED_AGAIN = life(1), life(2)
LEFT, LOST = NodeLeft(node=N1, epoch=1), NodeLost(node=N1, epoch=1, silent_s=5.0)
CORDONED, UNCORDONED = NodeCordoned(node=N1), NodeUncordoned(node=N1)
DRAINED, PRESSURED = NodeDrained(node=N1), NodePressured(**PRESSURE)
RELIEVED = NodeRelieved(**RELIEF)

LEAVE, LOSE = LeaveNode(node=N1, epoch=1), LoseNode(node=N1, epoch=1, silent_s=5.0)
CORDON, UNCORDON, DRAIN = CordonNode(node=N1), UncordonNode(node=N1), DrainNode(node=N1)
REPORT = ReportPressure(**PRESSURE)
RELIEVE = ReportRelief(**RELIEF)


def fold(*events):
    state = None
    for recorded in record_all(events):
        state = evolve(state, recorded, recorded.event)
    return state


@pytest.mark.parametrize(
    ("history", "command", "events"),
    [
        ((), life(1, JoinNode), (JOINED,)),
        ((JOINED,), life(2, JoinNode), (JOINED_AGAIN,)),
        ((JOINED, LEFT), life(2, JoinNode), (JOINED_AGAIN,)),
        ((JOINED, LOST), life(2, JoinNode), (JOINED_AGAIN,)),
        ((JOINED,), LEAVE, (LEFT,)),
        ((JOINED, LOST), LEAVE, (LEFT,)),
        ((JOINED, LEFT), LEAVE, ()),
        ((JOINED,), LOSE, (LOST,)),
        ((JOINED, LOST), LOSE, ()),
        ((JOINED, LEFT), LOSE, ()),
        ((JOINED, JOINED_AGAIN), LOSE, ()),
        ((JOINED,), CORDON, (CORDONED,)),
        ((JOINED, CORDONED), CORDON, ()),
        ((JOINED, DRAINED), CORDON, ()),
        ((JOINED, CORDONED), UNCORDON, (UNCORDONED,)),
        ((JOINED, DRAINED), UNCORDON, (UNCORDONED,)),
        ((JOINED,), UNCORDON, ()),
        ((JOINED, LOST), DRAIN, (DRAINED,)),
        ((JOINED, DRAINED), DRAIN, (DRAINED,)),
        ((JOINED,), REPORT, (PRESSURED,)),
        ((JOINED,), RELIEVE, (RELIEVED,)),
    ],
)
def test_decisions(history, command, events):
    assert decide(fold(*history), command) == events


@pytest.mark.parametrize(
    ("history", "command", "error", "why"),
    [
        *(((), c, NotFound, "no node") for c in (LEAVE, LOSE, CORDON, UNCORDON, DRAIN, REPORT)),
        ((), life(0, JoinNode), Rejected, "epoch 0"),
        ((JOINED,), life(1, JoinNode), Rejected, "reached epoch 1"),
        ((JOINED, LEFT), life(1, JoinNode), Rejected, "reached epoch 1"),
        ((JOINED, JOINED_AGAIN), LEAVE, Rejected, "stale"),
        ((JOINED, JOINED_AGAIN), REPORT, Rejected, "stale"),
        ((JOINED, JOINED_AGAIN), RELIEVE, Rejected, "stale"),
        ((JOINED, LOST), RELIEVE, Rejected, "cannot follow"),
        ((JOINED, LEFT), REPORT, Rejected, "cannot follow"),
        ((JOINED, LOST), REPORT, Rejected, "cannot follow"),
    ],
)
def test_refusals(history, command, error, why):
    with pytest.raises(error, match=why):
        decide(fold(*history), command)


def test_what_the_events_leave():
    state = fold(JOINED, PRESSURED)
    assert (state.id, state.epoch, state.address) == (N1, 1, "127.0.0.1:7000")
    assert (state.tiers, state.transports) == ({Tier.DRAM: 1 << 30}, ("tcp",))
    assert (state.labels, state.version) == ({"rack": "7"}, 2)
    assert state.overflow is Overflow.EVICT


@pytest.mark.parametrize(
    ("orders", "cordoned", "draining"),
    [
        ((), False, False),
        ((CORDONED,), True, False),
        ((DRAINED,), True, True),
        ((DRAINED, UNCORDONED), False, False),
        ((CORDONED, DRAINED), True, True),
    ],
)
def test_orders_outlive_the_mover(orders, cordoned, draining):
    state = fold(JOINED, *orders, LOST, JOINED_AGAIN)
    assert (state.cordoned, state.draining, state.epoch) == (cordoned, draining, 2)


STATES = {
    None: (),
    NodeStatus.UP: (JOINED,),
    NodeStatus.LEFT: (JOINED, LEFT),
    NodeStatus.LOST: (JOINED, LOST),
}
EVENTS = [JOINED_AGAIN, LEFT, LOST, CORDONED, UNCORDONED, DRAINED, PRESSURED, RELIEVED]


@pytest.mark.parametrize("status", STATES)
@pytest.mark.parametrize("event", EVENTS)
def test_the_table_is_the_law(status, event):
    check_law(evolve, fold(*STATES[status]), event, TRANSITIONS.get((status, type(event))))


def test_the_list_above_holds_every_event():
    assert {type(event) for event in EVENTS} == set(get_args(NodeEvent))


def test_a_join_of_another_name_does_not_change_this_one():
    other = msgspec.structs.replace(life(1, JoinNode), node="n2")
    assert decide(None, other)[0].node == "n2"
