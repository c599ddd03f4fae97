"""Timers when the NATS server is frozen: nobody is lost for a silence that it caused."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from controlplanes import CLUSTER, ControlPlane, open_hand
from tensorcast.controlplane.services.echo import Echo
from tensorcast.log.jetstream import connect_log
from tensorcast.schema.aggregates.node import NodeStatus
from tensorcast.schema.ids import NodeId
from tensorcast.schema.subjects import heartbeat

BEAT_S = 0.2
TIMEOUT_S = 2.0
NODES = ("n1", "n2")


async def beat(hand) -> None:
    while True:
        for node in NODES:
            await hand.log.nats.publish(heartbeat(CLUSTER, NodeId(node)), b'{"epoch": 1}')
        await asyncio.sleep(BEAT_S)


async def until_stopped(pid: int) -> None:
    """The threads of a process stop one by one after the signal."""
    async with asyncio.timeout(10):
        while any(  # noqa: ASYNC110 - the kernel tells nobody
            "State:\tT" not in status.read_text()
            for status in Path(f"/proc/{pid}/task").glob("*/status")
        ):
            await asyncio.sleep(0.01)


async def test_a_word_comes_back_unless_the_server_is_frozen(nats_server):
    log = await connect_log(nats_server.url, CLUSTER, name="test")
    async with Echo(log.nats) as echo:
        assert await echo.returns(5.0)
        os.kill(nats_server.pid, signal.SIGSTOP)
        await until_stopped(nats_server.pid)
        try:
            assert log.nats.is_connected
            assert not await echo.returns(0.3)
            assert not await echo.returns(0.3)
        finally:
            os.kill(nats_server.pid, signal.SIGCONT)
        assert await echo.returns(5.0)
        nats_server.kill()
        assert not await echo.returns(0.3)
        nats_server.start()
        async with asyncio.timeout(20):
            while not await echo.returns(0.3):
                pass
    await log.aclose()


@pytest.mark.slow
async def test_a_frozen_server_makes_nobody_lost(tmp_path, nats_server):
    plane = ControlPlane(tmp_path, nats_server.url, "", TENSORCAST_NODE_TIMEOUT_S=str(TIMEOUT_S))
    async with open_hand(nats_server.url) as hand:
        await hand.join(*NODES)
        beating = asyncio.create_task(beat(hand))
        await plane.start("timers")
        try:
            for frozen_s in (TIMEOUT_S + 0.5, 2 * TIMEOUT_S):
                await asyncio.sleep(TIMEOUT_S)
                os.kill(nats_server.pid, signal.SIGSTOP)
                await asyncio.sleep(frozen_s)
                os.kill(nats_server.pid, signal.SIGCONT)
                await asyncio.sleep(1.5 * TIMEOUT_S)
                assert [hand.view.nodes[node].status for node in NODES] == [NodeStatus.UP] * 2
            beating.cancel()
            await hand.until(
                lambda view: all(view.nodes[n].status is NodeStatus.LOST for n in NODES)
            )
        finally:
            beating.cancel()
            plane.end()
