from __future__ import annotations

import pytest

from tensorcast.controlplane.services.continuity import choose_places
from tensorcast.schema.ids import Seq


@pytest.mark.parametrize("last", [0, 1, 2, 5, 64, 1000, 10_000_000])
def test_the_first_and_the_last_events_are_looked_at_and_some_between(last):
    places = choose_places(Seq(last))
    assert all(1 <= seq <= last for seq in places)
    assert list(places) == sorted(set(places))
    assert len(places) <= 66
    if last:
        assert places[0] == 1
        assert set(range(max(1, last - 16), last + 1)) <= set(places)
    if last <= 17:
        assert len(places) == last
