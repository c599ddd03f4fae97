import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorcast.movers.core.health import (
    HealthLimits,
    Record,
    Standing,
    fail,
    forgiven,
    rate_of,
    standing,
    succeed,
)

LIMITS = HealthLimits(quarantine_s=1.0, quarantine_s_max=60.0, peers_max=4)
MIDDLE = 0.5


def failed(health, at_s, node="a", epoch=1, reason="it fell silent", jitter=MIDDLE):
    return fail(health, node, epoch, reason, at_s, jitter, LIMITS)


def test_nobody_is_suspected_without_cause():
    assert standing({}, "a", 1, 0.0) is Standing.GOOD
    assert rate_of({}, "a", 1) == 0.0


def test_a_failure_is_quarantine_then_probation_then_good_again():
    health = failed({}, 10.0)
    assert standing(health, "a", 1, 10.9) is Standing.QUARANTINED
    assert forgiven(health, 10.9) == frozenset()
    assert standing(health, "a", 1, 11.0) is Standing.PROBATION
    assert forgiven(health, 11.0) == {("a", 1)}
    health = succeed(health, "a", 1, 5e6, 11.1, LIMITS)
    assert standing(health, "a", 1, 11.1) is Standing.GOOD
    assert (rate_of(health, "a", 1), forgiven(health, 99.0)) == (5e6, frozenset())


def test_each_quarantine_is_twice_as_long_up_to_a_limit():
    health, at_s, lengths = {}, 0.0, []
    for _ in range(9):
        health = failed(health, at_s)
        lengths.append(health["a"].until_s - at_s)
        at_s = health["a"].until_s
    assert lengths == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_failure_that_many_transfers_meet_counts_once():
    health = failed({}, 10.0)
    assert failed(health, 10.5) is health
    assert failed(health, 11.0)["a"].failures == 2


def test_what_was_under_way_does_not_shorten_a_quarantine():
    health = failed({}, 10.0, reason="it is slow")
    assert succeed(health, "a", 1, 1.0, 10.5, LIMITS) is health


def test_a_new_life_has_a_clean_record_and_an_old_one_cannot_spoil_it():
    health = failed({}, 10.0, epoch=1)
    assert standing(health, "a", 2, 10.1) is Standing.GOOD
    health = succeed(health, "a", 2, 7.0, 10.2, LIMITS)
    assert failed(health, 10.3, epoch=1) is health
    assert succeed(health, "a", 1, 1.0, 10.3, LIMITS) is health
    assert rate_of(health, "a", 1) == 0.0
    assert failed(health, 10.4, epoch=2)["a"] == Record(
        epoch=2, failures=1, until_s=11.4, reason="it fell silent", rate=7.0
    )


@given(st.floats(0, 1), st.integers(1, 10))
def test_jitter_moves_it_by_a_quarter_at_most(jitter, failures):
    health = {"a": Record(epoch=1, failures=failures - 1)}
    length = failed(health, 0.0, jitter=jitter)["a"].until_s
    usual = min(2 ** (failures - 1), 60)
    assert 0.75 * usual <= length <= 1.25 * usual


def test_only_so_many_are_remembered():
    health = {}
    for n, node in enumerate("abcdef"):
        health = failed(health, float(n), node=node)
    assert sorted(health) == ["c", "d", "e", "f"]


@pytest.mark.parametrize("failures", [1, 1000])
def test_many_failures_do_not_overflow(failures):
    health = {"a": Record(epoch=1, failures=failures)}
    assert failed(health, 0.0)["a"].until_s <= 75
