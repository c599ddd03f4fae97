"""When a service is started again."""

import pytest

from tensorcast.deploy.service import backoff_s, count_failures, describe_exit


def test_the_first_restart_is_immediate_and_the_others_ever_slower():
    waits = [backoff_s(failures) for failures in range(12)]
    assert waits[:5] == [0.0, 0.0, 0.2, 0.4, 0.8]
    assert waits == sorted(waits)
    assert waits[-1] == 10.0
    assert backoff_s(100_000) == 10.0


@pytest.mark.parametrize(
    ("failures", "was_ready", "lived_s", "expected"),
    [(0, True, 60, 1), (7, True, 60, 1), (3, True, 1, 4), (3, False, 60, 4), (0, False, 0, 1)],
)
def test_a_long_good_life_starts_the_count_anew(failures, was_ready, lived_s, expected):
    assert count_failures(failures, was_ready=was_ready, lived_s=lived_s) == expected


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0, "ended with status 0"),
        (1 << 8, "ended with status 1"),
        (127 << 8, "could not be run"),
        (9, "was killed by SIGKILL"),
        (11, "was killed by SIGSEGV"),
    ],
)
def test_an_end_in_words(status, words):
    assert describe_exit(status) == words
