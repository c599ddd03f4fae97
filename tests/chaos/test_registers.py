"""The checker of registers: a table of histories, and what must hold for all of them."""

from __future__ import annotations

import random
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos.registers import Kind, Operation, is_linearizable

READ, MOVED, CLEARED = Kind.READ, Kind.MOVED, Kind.CLEARED
REFUSED, MISSING = Kind.REFUSED, Kind.MISSING


def op(kind, began, ended=inf, value=None, expect=None, sure=True) -> Operation:
    return Operation(kind, began, ended, value, expect, sure)


LEGAL = {
    "nothing": [],
    "a read of nothing": [op(READ, 0, 1)],
    "a move and a read": [op(MOVED, 0, 1, "a"), op(READ, 2, 3, "a")],
    "a read that overlaps sees the old": [op(MOVED, 0, 9, "a"), op(READ, 1, 2)],
    "a read that overlaps sees the new": [op(MOVED, 0, 9, "a"), op(READ, 1, 2, "a")],
    "two that overlap, in the other order": [
        op(MOVED, 0, 9, "b", "a"),
        op(MOVED, 1, 8, "a"),
        op(READ, 10, 11, "b"),
    ],
    "a move that was so already": [op(MOVED, 0, 1, "a"), op(MOVED, 2, 3, "a", "z")],
    "without an answer, and it happened": [op(MOVED, 0, inf, "a", sure=False), op(READ, 5, 6, "a")],
    "without an answer, and it did not": [op(MOVED, 0, inf, "a", sure=False), op(READ, 5, 6)],
    "without an answer, and it happened late": [
        op(MOVED, 0, inf, "a", sure=False),
        op(READ, 5, 6),
        op(READ, 7, 8, "a"),
    ],
    "a refusal": [op(MOVED, 0, 1, "a"), op(REFUSED, 2, 3, "c", "b")],
    "cleared": [op(MOVED, 0, 1, "a"), op(CLEARED, 2, 3), op(READ, 4, 5), op(MISSING, 6, 7)],
}
ILLEGAL = {
    "a stale read": [op(MOVED, 0, 1, "a"), op(READ, 2, 3)],
    "a read of what was never written": [op(READ, 0, 1, "a")],
    "an acknowledged move that is lost": [
        op(MOVED, 0, 1, "a"),
        op(MOVED, 2, 3, "b", "a"),
        op(READ, 4, 5, "a"),
    ],
    "two from one expectation": [
        op(MOVED, 0, 1, "a"),
        op(MOVED, 2, 9, "b", "a"),
        op(MOVED, 3, 8, "c", "a"),
    ],
    "back in time between two reads": [
        op(MOVED, 0, 9, "a"),
        op(READ, 1, 2, "a"),
        op(READ, 3, 4),
    ],
    "it happened twice": [
        op(MOVED, 0, inf, "a", sure=False),
        op(READ, 1, 2, "a"),
        op(CLEARED, 3, 4),
        op(READ, 5, 6, "a"),
    ],
    "refused for no reason": [op(MOVED, 0, 1, "a"), op(REFUSED, 2, 3, "b", "a")],
    "cleared out of nothing": [op(CLEARED, 0, 1)],
    "missing though it is there": [op(MOVED, 0, 1, "a"), op(MISSING, 2, 3)],
}


@pytest.mark.parametrize("history", LEGAL.values(), ids=LEGAL)
def test_what_one_register_explains(history):
    assert is_linearizable(history) is True


@pytest.mark.parametrize("history", ILLEGAL.values(), ids=ILLEGAL)
def test_what_no_register_explains(history):
    assert is_linearizable(history) is False


def test_a_search_without_end_is_given_up():
    endless = [op(MOVED, 0, inf, "ab"[n % 2], ("b", None)[n > 20]) for n in range(40)]
    assert is_linearizable([*endless, op(READ, 100, 101, "x")], steps_max=50) is None


def simulate(dice: random.Random, count: int) -> list[Operation]:
    """What clients see of a real register: each operation happens at a moment of its own, within
    its call and its answer."""
    moments = sorted(dice.random() * count for _ in range(count))
    held: str | None = None
    found = []
    for moment in moments:
        began, ended = moment - dice.random() * 3, moment + dice.random() * 3
        value, expect = dice.choice("abc"), dice.choice(("a", "b", "c", None))
        kind = dice.choice((READ, MOVED, CLEARED))
        if kind is READ:
            found.append(op(READ, began, ended, held))
        elif kind is CLEARED:
            found.append(op(CLEARED if held else MISSING, began, ended))
            held = None
        else:
            if held not in (expect, value):
                found.append(op(REFUSED, began, ended, value, expect))
                continue
            held = value
            unanswered = dice.random() < 0.2
            end = inf if unanswered else ended
            found.append(op(MOVED, began, end, value, expect, sure=not unanswered))
    return found


@given(st.integers(0, 1 << 30), st.integers(1, 60))
@settings(deadline=None)
def test_what_a_real_register_does_is_always_explained(seed, count):
    assert is_linearizable(simulate(random.Random(seed), count)) is True


@given(st.integers(0, 1 << 30))
@settings(deadline=None)
def test_a_read_of_something_else_at_the_end_is_always_found(seed):
    found = simulate(random.Random(seed), 20)
    assert is_linearizable([*found, op(READ, 100, 101, "never written")]) is False


def brute_force(history: list[Operation]) -> bool:
    """Every order, the slow way."""

    def search(rest: list[Operation], held: str | None) -> bool:
        if not any(one.is_sure for one in rest):
            return True
        first = min(one.ended for one in rest)
        return any(
            search([other for other in rest if other is not one], one.leave(held))
            for one in rest
            if one.began <= first and one.fits(held)
        )

    return search(history, None)


@given(
    st.lists(
        st.builds(
            lambda kind, began, length, value, expect, sure: op(
                kind, began, began + length, value, expect, sure or kind is not MOVED
            ),
            st.sampled_from(list(Kind)),
            st.integers(0, 8),
            st.integers(0, 6),
            st.sampled_from((None, "a", "b")),
            st.sampled_from((None, "a", "b")),
            st.booleans(),
        ),
        max_size=6,
    )
)
@settings(deadline=None)
def test_it_says_what_trying_all_orders_says(history):
    history = [one for one in history if one.kind is not MOVED or one.value is not None]
    assert is_linearizable(history) is brute_force(history)
