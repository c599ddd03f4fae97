"""Threads that share a list of work."""

from __future__ import annotations

import threading

import pytest

from tensorcast.schema.errors import Cancelled
from tensorcast.storage.crew import READS_MAX, READS_MIN, choose_copies, choose_reads, spread


@pytest.mark.parametrize("threads", [1, 3])
def test_everything_is_done_once(threads):
    assert sorted(spread(lambda n: n * n, range(50), threads)) == [n * n for n in range(50)]


@pytest.mark.parametrize("threads", [1, 3])
def test_the_first_error_ends_it(threads):
    begun = []

    def fail(item: int) -> None:
        begun.append(item)
        raise ValueError(str(item))

    with pytest.raises(ValueError, match=r"^\d$"):
        spread(fail, range(1000), threads)
    assert len(begun) <= threads


def test_it_can_be_stopped():
    stop = threading.Event()

    def work(item: int) -> None:
        if item == 3:
            stop.set()

    with pytest.raises(Cancelled):
        spread(work, range(1000), 2, stop)


def test_the_numbers_of_threads_have_limits():
    assert choose_copies() >= 1
    assert READS_MIN <= choose_reads() <= READS_MAX
