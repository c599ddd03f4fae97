"""Which blocks go first: tables for each policy, and what holds for all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorcast.movers.core.block_eviction import (
    AGE_AFTER_USES,
    USES_MAX,
    BlockPolicy,
    Occupant,
    aged,
    choose_victims,
    is_time_to_age,
    rank,
)

LRU, LFU, PRIORITY = BlockPolicy.LRU, BlockPolicy.LFU, BlockPolicy.PRIORITY
OLD_OFTEN_LOW = Occupant(b"a", 1, used_at=1, uses=5, priority=0)
MIDDLE_RARE_HIGH = Occupant(b"b", 1, used_at=2, uses=1, priority=9)
NEW_SOME_MIDDLE = Occupant(b"c", 1, used_at=3, uses=2, priority=4)
ALL = [NEW_SOME_MIDDLE, OLD_OFTEN_LOW, MIDDLE_RARE_HIGH]

occupants = st.lists(
    st.builds(
        Occupant,
        st.binary(min_size=1, max_size=4),
        st.just(1),
        st.integers(0, 50),
        st.integers(0, 30),
        st.integers(0, 15),
    ),
    unique_by=lambda one: one.key,
)
policies = st.sampled_from(BlockPolicy)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [(LRU, b"abc"), (LFU, b"bca"), (PRIORITY, b"acb")],
)
def test_each_policy_has_its_order(policy: BlockPolicy, expected: bytes):
    assert b"".join(choose_victims(ALL, 3, policy)) == expected


@pytest.mark.parametrize("policy", BlockPolicy)
def test_equals_go_in_the_order_of_their_last_use_then_by_key(policy: BlockPolicy):
    equal = [Occupant(b"z", 1, 1), Occupant(b"y", 1, 2), Occupant(b"x", 1, 2)]
    assert choose_victims(equal, 3, policy) == (b"z", b"x", b"y")


def test_uses_beyond_a_limit_make_no_difference():
    often = Occupant(b"a", 1, used_at=1, uses=USES_MAX)
    oftener = Occupant(b"b", 1, used_at=1, uses=USES_MAX * 100)
    assert rank(often, LFU) == rank(oftener, LFU)


@given(occupants, st.integers(0, 60), policies)
def test_victims_are_the_worst_and_as_many_as_wanted(
    found: list[Occupant], count: int, policy: BlockPolicy
):
    victims = choose_victims(found, count, policy)
    assert len(set(victims)) == len(victims) == min(count, len(found))
    gone = [rank(one, policy) for one in found if one.key in victims]
    kept = [rank(one, policy) for one in found if one.key not in victims]
    assert not gone or not kept or max(gone) <= min(kept)


@given(occupants, st.integers(0, 60), policies, st.randoms())
def test_the_order_in_which_blocks_are_given_changes_nothing(found, count, policy, random):
    shuffled = list(found)
    random.shuffle(shuffled)
    assert choose_victims(found, count, policy) == choose_victims(shuffled, count, policy)


@given(st.dictionaries(st.binary(max_size=3), st.integers(1, 100)))
def test_counts_age_and_are_forgotten(uses: dict[bytes, int]):
    halved = aged(uses)
    assert all(halved[key] == uses[key] // 2 for key in halved)
    assert all(uses[key] == 1 for key in uses.keys() - halved.keys())
    for _ in range(7):
        halved = aged(halved)
    assert not halved


@pytest.mark.parametrize(
    ("uses", "blocks", "expected"),
    [(0, 0, False), (AGE_AFTER_USES, 0, True), (AGE_AFTER_USES * 9, 10, False), (80, 10, True)],
)
def test_counts_age_after_so_many_uses_of_each(uses: int, blocks: int, expected: bool):
    assert is_time_to_age(uses, blocks) is expected
