import itertools

import pytest

from tensorcast.movers.core.fabric import RAILS_MAX, agree_mtu, agree_reads, pair_rail


@pytest.mark.parametrize(
    ("ours", "theirs", "wished", "agreed"),
    [(5, 5, None, 5), (5, 3, None, 3), (5, 5, 2048, 4), (3, 5, 4096, 3), (5, 5, 777, 5)],
)
def test_the_path_carries_what_both_ports_do(ours, theirs, wished, agreed):
    assert agree_mtu(ours, theirs, wished) == agreed


@pytest.mark.parametrize(
    ("ours", "theirs", "wished", "agreed"), [(128, 16, 32, 16), (4, 16, 8, 4), (0, 0, 8, 1)]
)
def test_no_more_reads_than_either_end_manages(ours, theirs, wished, agreed):
    assert agree_reads(ours, theirs, wished) == agreed


def test_device_n_goes_with_device_n():
    assert rails(1, 1, 1) == [(0, 0)]
    assert rails(2, 2, 2) == [(0, 0), (1, 1), (0, 0), (1, 1)]
    assert rails(1, 2, 1) == [(0, 0), (0, 1)]
    assert rails(2, 1, 1) == [(0, 0), (1, 0)]


def test_who_does_not_know_the_peers_devices_tries_one_after_another():
    assert rails(2, None, 1) == [(0, 0), (1, 1)]


def test_there_are_no_more_rails_however_many_are_asked_for():
    assert len(rails(1, 1, 10**9)) == len(rails(1, 40_000_000, 1)) == RAILS_MAX


def rails(ours: int, theirs: int | None, queue_pairs: int) -> list[tuple[int, int]]:
    pairs = (pair_rail(n, ours, theirs, queue_pairs) for n in range(10**9))
    return list(itertools.takewhile(lambda pair: pair is not None, pairs))
