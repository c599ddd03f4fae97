"""A log with a policy that was stopped, decided anew: it is stopped there again, and no other."""

import pytest

from tensorcast.controlplane.core.catalog import CATALOG, Kind
from tensorcast.controlplane.core.guard import FORBIDDEN, SLOW, Overdue
from tensorcast.controlplane.simulator.backtest import compare, review
from tensorcast.controlplane.simulator.stops import find_stops
from tensorcast.controlplane.simulator.world import World
from tensorcast.schema.cluster import ClusterView, project
from tensorcast.schema.commands import EmitSignal, EnablePolicy, JoinNode
from tensorcast.schema.events import SignalEmitted
from tensorcast.schema.ids import Epoch, NodeId
from tensorcast.schema.policy_events import PolicyStopped


class Bad:
    """Answers signals on `go` with what it is given, or raises it; `asked` counts that."""

    name = "bad"

    def __init__(self, answer):
        self.answer = answer
        self.asked = 0

    def react(self, view, recorded):
        event = recorded.event
        if not isinstance(event, SignalEmitted) or event.topic != "go":
            return ()
        self.asked += 1
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def catalog_of(policy):
    return CATALOG.replace(Kind(name="bad", about="", origin="t.py", make=lambda _: policy))


def log_of(catalog):
    world = World(1, catalog=catalog)
    join = JoinNode(
        node=NodeId("n1"), epoch=Epoch(1), address="h:1", tiers={"dram": 1 << 30}, transports=()
    )
    world.do(join, actor="mover:n1")
    world.do(EnablePolicy(policy="bad"), actor="user:x")
    for second in (1.0, 2.0):
        go = EmitSignal(topic="go")
        world.agenda.after(second, lambda go=go: world.do(go, actor="user:x"))
    world.agenda.run(5.0)
    return tuple(world.log)


@pytest.mark.parametrize(
    ("answer", "reason"), [((1, 2), FORBIDDEN), (Overdue("It is at line 3."), SLOW)]
)
def test_whoever_was_stopped_is_not_asked_again_and_the_backtest_goes_on(answer, reason):
    log = log_of(catalog_of(Bad(answer)))
    (stopped,) = (one.event for one in log if isinstance(one.event, PolicyStopped))
    assert stopped.reason == reason
    again = Bad(answer)
    found = compare(ClusterView(), log, catalog_of(again), CATALOG)
    assert found.review.is_exact, found.review
    assert again.asked == 0
    assert found.as_it_was.faults == ()


def test_an_answer_that_no_log_can_hold_is_told_and_ends_nothing():
    log = log_of(catalog_of(Bad(())))
    bad = Bad((1, 2))
    found = review(ClusterView(), log, catalog_of(bad))
    assert (bad.asked, found.decided, found.carried_out) == (2, 2, 0)


def test_part_of_a_log_that_begins_between_an_event_and_the_stop():
    bad = Bad((1, 2))
    log = log_of(catalog_of(bad))
    place = next(i for i, one in enumerate(log) if isinstance(one.event, PolicyStopped))
    view = ClusterView()
    for recorded in log[:place]:
        view = project(view, recorded)
    stops = find_stops(log[place:])
    assert [one.seq for one in stops.at(log[place].seq)] == [log[place].seq]
    assert review(view, log[place:], catalog_of(Bad((1, 2)))).is_exact
    assert find_stops(log).still(log[place].seq - 1, (bad,)) == ()
    assert find_stops(log).still(log[place].seq, (bad,)) == (bad,)
