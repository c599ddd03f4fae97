"""Budgets that a machine can give, and those that it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from samples import MIB
from tensorcast.movers.budget import (
    RESERVE_BYTES_MAX,
    DiskBudget,
    DiskSpace,
    check_budgets,
    disk_capacity,
    read_space,
)
from tensorcast.schema.errors import InvalidArgument

GIB = 1 << 30


@pytest.mark.parametrize(
    ("size", "free", "used", "limit", "capacity"),
    [
        (1000, 500, 100, None, 550),
        (1000, 30, 100, None, 100),
        (1000, 500, 100, 300, 300),
        (1000, 100, 100, 900, 200),
        (1000, 0, 100, 0, 0),
        (1000 * GIB, 500 * GIB, 0, None, 500 * GIB - RESERVE_BYTES_MAX),
    ],
)
def test_what_a_disk_may_hold(
    size: int, free: int, used: int, limit: int | None, capacity: int
) -> None:
    assert disk_capacity(DiskSpace(size, free), used, limit) == capacity


def test_what_no_machine_has_is_refused(tmp_path: Path):
    check_budgets(64 * MIB, None, tmp_path)
    check_budgets(64 * MIB, read_space(tmp_path).size_bytes, tmp_path)
    with pytest.raises(InvalidArgument, match=r"more than .* machine"):
        check_budgets(1 << 50, None, tmp_path)
    with pytest.raises(InvalidArgument, match=r"more than .* disk"):
        check_budgets(64 * MIB, 1 << 60, tmp_path)


def test_a_budget_follows_the_disk(tmp_path: Path):
    size = read_space(tmp_path).size_bytes
    free, limited = DiskBudget(tmp_path, None), DiskBudget(tmp_path, 5 * MIB)
    assert free.most() == size
    assert 0 < free.capacity(0) < size
    assert (limited.most(), limited.capacity(MIB)) == (5 * MIB, 5 * MIB)
    assert DiskBudget(tmp_path, 1 << 60).most() == size
