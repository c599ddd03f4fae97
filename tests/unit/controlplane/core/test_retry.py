from itertools import pairwise

import pytest

from tensorcast.controlplane.core.retry import (
    ATTEMPTS_MAX,
    DELAY_S_FIRST,
    DELAY_S_MAX,
    GiveUp,
    RetryAfter,
    retry,
)
from tensorcast.schema.faults import RETRYABLE, Fault, FaultKind


def fault(kind=FaultKind.UNAVAILABLE):
    return Fault(kind=kind, detail="it is so")


def test_delays_double():
    delays = [retry(fault(), attempt).delay_s for attempt in range(1, ATTEMPTS_MAX)]
    assert delays[0] == DELAY_S_FIRST
    assert all(b == min(2 * a, DELAY_S_MAX) for a, b in pairwise(delays))


@pytest.mark.parametrize("attempt", [ATTEMPTS_MAX, ATTEMPTS_MAX + 1, 10**6])
def test_tries_are_limited(attempt):
    assert retry(fault(), attempt) == GiveUp(fault())


@pytest.mark.parametrize("kind", FaultKind)
def test_only_what_a_retry_can_help_is_retried(kind):
    expected = RetryAfter if kind in RETRYABLE else GiveUp
    assert isinstance(retry(fault(kind), 1), expected)


def test_attempts_count_from_one():
    with pytest.raises(AssertionError):
        retry(fault(), 0)
