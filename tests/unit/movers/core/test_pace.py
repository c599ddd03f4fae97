import pytest

from tensorcast.movers.core.pace import MEMORY_S, WINDOW_S, Pace, hear, resume, silent_s, time_for

MIB = 1 << 20


def run(pace, rate, seconds, at_s=0.0, step_s=0.01):
    """The pace after so many seconds of arrivals at a steady rate, and when that is."""
    for _ in range(round(seconds / step_s)):
        at_s += step_s
        pace = hear(pace, int(rate * step_s), at_s)
    return pace, at_s


def test_a_steady_rate_is_found_after_one_window():
    pace, _ = run(resume(Pace(), 0.0), 100 * MIB, 2 * WINDOW_S)
    assert pace.rate == pytest.approx(100 * MIB, rel=0.05)


@pytest.mark.parametrize("after", [10 * MIB, 1000 * MIB])
def test_a_change_is_followed_within_a_few_memories(after):
    pace, at_s = run(resume(Pace(), 0.0), 100 * MIB, 2.0)
    pace, _ = run(pace, after, 6 * MEMORY_S, at_s)
    assert pace.rate == pytest.approx(after, rel=0.1)


def test_one_burst_does_not_decide():
    pace, at_s = run(resume(Pace(), 0.0), 100 * MIB, 2.0)
    pace = hear(pace, 200 * MIB, at_s + WINDOW_S)
    assert pace.rate < 600 * MIB


def test_rest_does_not_count():
    pace, at_s = run(resume(Pace(), 0.0), 100 * MIB, 1.0)
    pace = resume(pace, at_s + 100)
    assert silent_s(pace, at_s + 101) == pytest.approx(1.0)
    pace, _ = run(pace, 100 * MIB, 1.0, at_s + 100)
    assert pace.rate == pytest.approx(100 * MIB, rel=0.05)


def test_the_time_for_bytes():
    assert time_for(Pace(), MIB, 5.0, MIB) == float("inf")
    pace = Pace(rate=10 * MIB, since_s=5.0, heard_s=5.0)
    assert time_for(pace, 20 * MIB, 5.0, MIB) == 2.0
    assert time_for(pace, 20 * MIB, 5.05, MIB) == 2.0
    assert time_for(pace, 20 * MIB, 7.0, MIB) == 40.0, "not one part in two seconds"
