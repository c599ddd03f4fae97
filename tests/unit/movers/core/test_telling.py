"""How often a node tells what happens to its blocks."""

from __future__ import annotations

import pytest

from tensorcast.movers.core.telling import TellingPace


def follow(pace: TellingPace, now_s: float, times: int) -> list[float]:
    """The rests of a node in which something changes all the time."""
    rests: list[float] = []
    for _ in range(times):
        rests.append(pace.rest_s(now_s))
        now_s += rests[-1]
        pace.told(now_s)
    return rests


def test_what_comes_alone_is_told_at_once():
    pace = TellingPace(0.05)
    for now_s in (0.0, 10.0, 12.1):
        assert pace.rest_s(now_s) == 0.05
        pace.told(now_s + 0.05)


def test_what_comes_without_end_is_told_more_and_more_seldom():
    assert follow(TellingPace(0.05), 0.0, 6) == pytest.approx([0.05, 0.25, 0.5, 1.0, 1.0, 1.0])


def test_after_a_quiet_time_it_is_quick_again():
    pace = TellingPace(0.05)
    follow(pace, 0.0, 6)
    assert pace.rest_s(100.0) == 0.05
    pace.told(100.05)
    assert pace.rest_s(100.06) == pytest.approx(0.24)


def test_without_a_linger_nothing_is_waited_for():
    assert follow(TellingPace(0.0), 0.0, 4) == [0.0] * 4
