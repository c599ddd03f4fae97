"""Which blocks of a request are loaded and which are saved."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorcast.engines.vllm.connector.tracks import (
    agree,
    all_there,
    find_matched,
    find_unsaved,
    merge_table,
    usable_blocks,
)

YES, NO = True, False


@pytest.mark.parametrize(
    ("are_there", "local", "tokens", "matched"),
    [
        ([], 0, 100, 0),
        ([YES, YES, YES], 0, 100, 3),
        ([YES, NO, YES], 0, 100, 1),
        ([NO, YES, YES], 0, 100, 0),
        ([NO, YES, YES], 1, 100, 2),  # what is here already need not be there
        ([YES, YES, YES], 3, 100, 0),
        ([YES, YES], 0, 32, 1),  # the last token is computed
        ([YES, YES], 0, 33, 2),
        ([YES], 0, 16, 0),
        ([YES], 5, 100, 0),
    ],
)
def test_what_is_loaded(are_there, local, tokens, matched):
    assert find_matched(are_there, local, tokens, 16) == matched


@given(st.lists(st.booleans(), max_size=20), st.integers(0, 20), st.integers(1, 400))
def test_what_is_loaded_is_there_and_leaves_a_token(are_there, local, tokens):
    matched = find_matched(are_there, local, tokens, 16)
    assert matched >= 0
    assert all(are_there[local : local + matched])
    assert matched == 0 or (local + matched) * 16 < tokens


@given(st.lists(st.sampled_from([5, 6, 7, 8]), max_size=24), st.sampled_from([1, 2, 3, 4]))
def test_a_block_is_there_when_all_its_pieces_are(states, each):
    states = states[: len(states) // each * each]
    found = all_there(bytes(states), each, 5)
    assert len(found) == len(states) // each
    assert found == [5 not in states[n * each : (n + 1) * each] for n in range(len(found))]


@pytest.mark.parametrize(
    ("first", "complete", "known", "stored", "held", "numbers"),
    [
        (0, 3, 5, set(), 5, [0, 1, 2]),
        (0, 3, 2, set(), 5, [0, 1]),  # no hash yet
        (0, 3, 5, set(), 1, [0]),  # no block
        (0, 3, 5, {1}, 5, [0, 2]),
        (2, 3, 5, set(), 5, [2]),
        (3, 3, 5, set(), 5, []),
        (4, 3, 5, set(), 5, []),
    ],
)
def test_what_is_saved(first, complete, known, stored, held, numbers):
    assert find_unsaved(first, complete, known, stored, held) == numbers


def test_tables_grow_and_are_replaced_after_a_preemption():
    assert merge_table([1, 2], [3], is_resumed=False) == [1, 2, 3]
    assert merge_table([1, 2], [7, 8], is_resumed=True) == [7, 8]
    assert merge_table([1, 2], None, is_resumed=False) == [1, 2]


def test_only_blocks_before_the_first_that_is_missing_are_usable():
    assert usable_blocks([]) == 0
    assert usable_blocks([True, True, False, True]) == 2
    assert usable_blocks([True, True]) == 2


def test_weights_are_known_when_all_workers_agree():
    assert agree(["a", "a"]) == "a"
    assert agree(["a", "b"]) is None
    assert agree(["a", None]) is None
    assert agree([]) is None
