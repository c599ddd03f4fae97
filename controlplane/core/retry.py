"""What follows a fault: another try after a while, or none."""

from __future__ import annotations

import msgspec

from tensorcast.schema.faults import Fault

ATTEMPTS_MAX = 5
DELAY_S_FIRST = 0.5
DELAY_S_MAX = 30.0


class RetryAfter(msgspec.Struct, frozen=True):
    """Try again, `delay_s` seconds after the failure."""

    delay_s: float


class GiveUp(msgspec.Struct, frozen=True):
    """It ends here, for this reason."""

    fault: Fault


def retry(fault: Fault, attempt: int) -> RetryAfter | GiveUp:
    """What follows when try number `attempt` (from 1) ended with `fault`: the delay doubles from
    `DELAY_S_FIRST` to `DELAY_S_MAX`; after `ATTEMPTS_MAX` tries, or when no retry can help, it is
    given up."""
    assert attempt >= 1, f"attempts count from 1, got {attempt}"
    if not fault.retryable or attempt >= ATTEMPTS_MAX:
        return GiveUp(fault)
    return RetryAfter(min(DELAY_S_FIRST * 2 ** (attempt - 1), DELAY_S_MAX))
