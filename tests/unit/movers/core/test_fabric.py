import pytest

from tensorcast.movers.core.fabric import agree_mtu, agree_reads, pair_rails


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
    assert pair_rails(1, 1, 1) == ((0, 0),)
    assert pair_rails(2, 2, 2) == ((0, 0), (1, 1), (0, 0), (1, 1))
    assert pair_rails(1, 2, 1) == ((0, 0), (0, 1))
