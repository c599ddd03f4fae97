"""Both logs keep the one contract."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from conformance.log import CHECKS, check_cursors
from tensorcast.log.jetstream import JetStreamCursors, connect_log
from tensorcast.log.memory import MemoryCursors, MemoryLog
from tensorcast.log.tail import Tail


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_log_in_memory(check):
    await check(MemoryLog())


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_the_tail_of_a_log(check):
    tail = Tail(MemoryLog())
    task = asyncio.create_task(tail.run())
    try:
        await check(tail)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_cursors_in_memory():
    await check_cursors(MemoryCursors())


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_log_on_jetstream(check, nats_server):
    log = await connect_log(nats_server.url, f"c-{uuid.uuid4().hex[:8]}", name="test")
    try:
        await check(log)
    finally:
        await log.aclose()


async def test_cursors_on_jetstream(nats_server):
    log = await connect_log(nats_server.url, "c", name="test")
    try:
        await check_cursors(JetStreamCursors(log))
    finally:
        await log.aclose()
