"""The embedded cluster with our own processes: start-up time, idle cost, what they load."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from embedded import home, outside
from tensorcast.deploy import cluster

__all__ = ["home", "outside"]  # fixtures

pytestmark = pytest.mark.slow

REAL = {"controlplane_command": (), "mover_command": (), "dram_bytes": 256 << 20}
WARM_UP_S_MAX = 3.0
IDLE_PSS_MIB_MAX = 400
IDLE_CORE_MAX = 0.02
MEASURE_S = 20.0


def family_of(services) -> list[psutil.Process]:
    """All processes of a cluster; those of Postgres are its children."""
    roots = [psutil.Process(service.pid) for service in services]
    inner = [p for root in roots[1:] for p in root.children(recursive=True)]
    return [*roots, *inner]


def cpu_s(family: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in family)


def warm_up_s(home) -> float:
    home.down()
    began = time.monotonic()
    home.up(**REAL)
    return time.monotonic() - began


def test_a_warm_start_is_quick_and_an_idle_cluster_small(home):
    home.up(**REAL)
    assert min(warm_up_s(home) for _ in range(3)) < WARM_UP_S_MAX
    services = cluster.status(home.home).services
    family = family_of(services)
    loaded = {s.name: Path(f"/proc/{s.pid}/maps").read_text() for s in services}
    assert not [name for name, maps in loaded.items() if "libtorch" in maps]
    time.sleep(2)  # the first seconds are not idle ones
    before = cpu_s(family)
    time.sleep(MEASURE_S)
    assert (cpu_s(family) - before) / MEASURE_S < IDLE_CORE_MAX
    assert sum(process.memory_full_info().pss for process in family) >> 20 < IDLE_PSS_MIB_MAX
