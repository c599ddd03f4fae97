from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from samples import BEGIN
from stored_histories import EVENTS, history
from tensorcast.controlplane.store.dead_letters import take_recorded
from tensorcast.controlplane.store.gathering import Gathering
from tensorcast.controlplane.store.rows import read_event
from tensorcast.log.port import Stored
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.ids import Seq


@settings(deadline=None)
@given(
    st.integers(0, 5), st.sets(st.integers(1, EVENTS), max_size=6), st.sets(st.integers(1, EVENTS))
)
def test_what_is_gathered_is_the_fold(seed, refused, junk):
    """With whatever is refused and whatever bytes are no event: the same states, the same things
    parked, the same letters."""
    said = dict.fromkeys(refused, "no")
    gathering, view, letters = Gathering(said), ClusterView(), []
    for one in history(seed):
        stored = Stored(one.seq, one.subject, b"junk") if one.seq in list(junk)[:3] else one
        gathering.take(stored)
        view, letter = take_recorded(view, stored, read_event(stored, BEGIN), said)
        letters += [letter] if letter else []
    assert gathering.view() == view
    assert gathering.letters == letters
    late = list(gathering.states(Seq(EVENTS // 2)))
    assert sorted(map(str, late)) == sorted(
        str(state) for state in gathering.states() if state.version > EVENTS // 2
    )
