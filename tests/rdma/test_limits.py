"""Movers that may lock little memory: what moves how, and who hears why."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from mover_nodes import MIB, Content, MoverNode, observing
from servers import NatsServer
from tensorcast.schema.aggregates.operation import Operation
from tensorcast.schema.work import Materialize

LIMITED = """
import ctypes, os, resource, sys
resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, int(sys.argv[1])))
drop_from_bounds, lock_memory = 24, 14
assert ctypes.CDLL(None).prctl(drop_from_bounds, lock_memory) == 0
os.execv(sys.argv[2], sys.argv[2:])
"""
pytestmark = pytest.mark.rdma


async def pull(tmp_path: Path, url: str, hard: int) -> tuple[list[Operation], str]:
    """Two pulls of a mover that has this hard limit and a soft one of 64 KiB, and its log."""
    done = []
    one = MoverNode("n1", tmp_path / "n1", url, TENSORCAST_RDMA="rxe0")
    two = MoverNode("n2", tmp_path / "n2", url, TENSORCAST_RDMA="rxe1")
    two.prefix = (sys.executable, "-c", LIMITED, str(hard))
    try:
        for node in (one, two):
            node.start()
        async with observing(url) as observer:
            for seed in (1, 2):
                content = Content([4 * MIB], seed=seed)
                with one.application() as application:
                    await asyncio.to_thread(application.put, content, key=f"m{seed}")
                issued = await observer.issue("n2", Materialize(artifact=content.id))
                done.append(await observer.succeeded(issued))
        return done, two.log_text()
    finally:
        for node in (one, two):
            node.close()


async def test_too_little_memory_to_lock_is_told_once_with_what_helps(
    tmp_path: Path, nats_server: NatsServer
):
    done, log = await pull(tmp_path, nats_server.url, 65536)
    assert [set(one.transports) for one in done] == [{"tcp"}, {"tcp"}]
    (detour,) = done[0].detours
    assert "ulimit -l unlimited" in detour.why
    assert "LimitMEMLOCK" in detour.why
    assert ".." not in detour.why
    assert log.count("cannot be registered with rxe1") == 1
    assert log.count("ulimit -l unlimited") == 1


async def test_a_soft_limit_is_raised_by_the_mover_itself(tmp_path: Path, nats_server: NatsServer):
    done, log = await pull(tmp_path, nats_server.url, -1)
    assert [set(one.transports) for one in done] == [{"rdma"}, {"rdma"}], log
