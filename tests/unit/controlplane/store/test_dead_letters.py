from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from samples import BEGIN
from stored_histories import EVENTS, history
from tensorcast.controlplane.store.dead_letters import Fault, take_recorded
from tensorcast.controlplane.store.rows import find_state, read_event
from tensorcast.log.folding import take
from tensorcast.log.port import Stored
from tensorcast.schema.cluster import ClusterView, release
from tensorcast.schema.events import aggregate_of
from tensorcast.schema.ids import Seq
from tensorcast.schema.parking import parked_id, split_id


def fold(view, log, refused=()):
    letters = []
    for one in log:
        said = dict.fromkeys(refused, "no")
        view, letter = take_recorded(view, one, read_event(one, BEGIN), said)
        letters += [letter] if letter else []
    return view, letters


@settings(deadline=None)
@given(st.integers(0, 5), st.sets(st.integers(1, EVENTS), max_size=8))
def test_what_was_parked_and_is_tried_again_is_as_if_it_had_never_been(seed, refused):
    """Whatever is refused: the letters are what is parked, what is about anything else is as it
    would be, and the events of one thing alone lead to its state."""
    log = history(seed)
    whole, none = fold(ClusterView(), log)
    assert not none
    view, letters = fold(ClusterView(), log, refused)
    assert view.skipped == len(letters) == sum(one.events for one in view.parked.values())
    assert {one.seq for one in letters if one.fault is Fault.POSTGRES} <= refused
    for one in letters:
        is_first = one.seq == view.parked[one.name].first
        assert (one.fault is Fault.FOLLOWS) != is_first or one.name.startswith("signal/")
    of = {one.seq: parked_id(*aggregate_of(read_event(one, BEGIN).event)) for one in log}
    for name in view.parked:
        kind, aggregate_id = split_id(name)
        alone, _ = fold(ClusterView(), [one for one in log if of[one.seq] == name])
        view = release(view, name, find_state(alone, kind, aggregate_id))
    assert view == whole


def test_bytes_that_are_no_event_get_a_letter():
    stored = Stored(Seq(1), "tc.c.log.node.n1", b"junk")
    view, letter = take_recorded(ClusterView(), stored, read_event(stored, BEGIN), {})
    assert letter.fault is Fault.UNREADABLE
    assert letter.name == "node/n1"
    assert take(ClusterView(), stored) == (view, None)


def test_the_fold_of_the_processes_is_that_of_the_writer():
    log = [*history(3)[:20], Stored(Seq(21), "tc.c.log.key.k", b"{}"), *history(3)[21:]]
    view = ClusterView()
    for one in log:
        view, _ = take(view, one)
    assert fold(ClusterView(), log)[0] == view
