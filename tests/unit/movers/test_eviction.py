"""Which replicas a node offers to give up, by table."""

from __future__ import annotations

import pytest

from tensorcast.movers.core.eviction import (
    APART_S,
    CANDIDATES_MAX,
    HALF_LIFE_S,
    Heat,
    Occupant,
    Watermarks,
    order_candidates,
)
from tensorcast.schema.ids import ReplicaId


def occupant(
    name: str,
    used_at: float,
    *,
    readers: int = 0,
    claimed: bool = False,
    has_copy: bool = False,
) -> Occupant:
    return Occupant(
        replica=ReplicaId(name),
        size_bytes=1,
        readers=readers,
        used_at=used_at,
        claimed=claimed,
        has_copy=has_copy,
    )


def names(*occupants: Occupant) -> list[str]:
    return [found.replica for found in order_candidates(occupants)]


def test_the_coldest_come_first():
    assert names(occupant("a", 3.0), occupant("b", 1.0), occupant("c", 2.0)) == ["b", "c", "a"]


def test_what_is_read_or_claimed_is_never_offered():
    assert names(occupant("a", 1.0, readers=1), occupant("b", 1.0, claimed=True)) == []


def test_equals_are_ordered_by_name():
    assert names(occupant("b", 1.0), occupant("a", 1.0)) == ["a", "b"]


def test_there_is_a_limit():
    many = [occupant(f"r{n:03}", float(n)) for n in range(CANDIDATES_MAX + 5)]
    found = names(*reversed(many))
    assert len(found) == CANDIDATES_MAX
    assert found[0] == "r000"


def test_what_has_a_copy_is_offered_however_warm_it_is():
    many = [occupant(f"r{n:03}", float(n)) for n in range(CANDIDATES_MAX + 5)]
    found = names(*many, occupant("warm", 999.0, has_copy=True))
    assert len(found) == CANDIDATES_MAX + 1
    assert found[-1] == "warm"


@pytest.mark.parametrize(
    ("taken", "excess", "spare"),
    [(0, 0, 80), (80, 0, 0), (90, 0, 0), (91, 11, 0), (100, 20, 0)],
)
def test_marks(taken: int, excess: int, spare: int):
    marks = Watermarks(high=0.9, low=0.8)
    assert marks.excess(taken, 100) == excess
    assert marks.spare(taken, 100) == spare


def test_heat_cools():
    heat = Heat().warmed(100.0)
    assert heat.now(100.0) == 1.0
    assert heat.now(100.0 + HALF_LIFE_S) == pytest.approx(0.5)
    assert heat.warmed(100.0 + HALF_LIFE_S).score == pytest.approx(1.5)
    assert Heat().now(5.0) == 0.0


def test_uses_that_follow_closely_are_one():
    heat = Heat().warmed(100.0)
    assert heat.warmed(100.0 + APART_S / 2) is heat
