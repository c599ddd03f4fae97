"""Which replicas a node offers to give up, by table."""

from __future__ import annotations

from tensorcast.movers.core.eviction import CANDIDATES_MAX, Occupant, order_candidates
from tensorcast.schema.ids import ReplicaId


def occupant(name: str, used_at: float, *, readers: int = 0, claimed: bool = False) -> Occupant:
    return Occupant(
        replica=ReplicaId(name), size_bytes=1, readers=readers, used_at=used_at, claimed=claimed
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
