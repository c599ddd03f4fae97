"""Two control planes at once, as processes: one is killed, one is stopped, and all goes on."""

from __future__ import annotations

import asyncio
import os
import signal

import asyncpg
import pytest

from conformance.log import read_until
from controlplanes import ControlPlane, open_hand
from stores import database, engine
from tensorcast.controlplane.store.load import read_history
from tensorcast.controlplane.store.queries import committed_seq
from tensorcast.controlplane.store.write import SEAT, load_position
from tensorcast.schema.api import Ask, ClusterStatus
from tensorcast.schema.commands import RequestReplicas
from tensorcast.schema.ids import NodeId, Seq, Tier

__all__ = ["database", "engine"]  # fixtures

pytestmark = [pytest.mark.slow, pytest.mark.failover, pytest.mark.timeout(120)]

SEATED = """
SELECT a.client_port FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.granted AND l.objid::bigint = $1
  AND a.datname = current_database()
"""


@pytest.fixture
def planes(tmp_path, nats_server, database):
    # Nobody's mover says that it lives.
    patience = {"TENSORCAST_NODE_TIMEOUT_S": "3600"}
    both = [ControlPlane(tmp_path, nats_server.url, database, **patience) for _ in range(2)]
    yield both
    for plane in both:
        if plane.process is not None:
            os.kill(plane.process.pid, signal.SIGCONT)
        plane.end(signal.SIGKILL)


async def seated_port(url: str) -> int | None:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(SEATED, SEAT.lock & 0xFFFF_FFFF)
    finally:
        await connection.close()


def has_port(plane: ControlPlane, port: int) -> bool:
    """Whether a process owns the socket of a local port."""
    local = f"{port:04X}"
    with open("/proc/net/tcp") as table:
        inodes = {
            row.split()[9] for row in table.readlines()[1:] if row.split()[1].endswith(f":{local}")
        }
    folder = f"/proc/{plane.process.pid}/fd"
    names = {os.readlink(f"{folder}/{number}") for number in os.listdir(folder)}
    return any(f"socket:[{inode}]" in names for inode in inodes)


async def find_writer(url: str, planes: list[ControlPlane]) -> ControlPlane:
    async with asyncio.timeout(20):
        while True:
            port = await seated_port(url)
            for plane in planes:
                if port and plane.process and has_port(plane, port):
                    return plane
            await asyncio.sleep(0.05)


class Rounds:
    """Puts and requests, in a task, until it is stopped."""

    def __init__(self, hand) -> None:
        self.hand = hand
        self.wanted: set[tuple[str, str]] = set()
        self.stopped = False

    async def run(self) -> None:
        number = 0
        while not self.stopped:
            artifact = await self.hand.put(f"a{number}", "n1")
            nodes = (NodeId("n2"), NodeId("n3"))
            await self.hand.write(RequestReplicas(artifact=artifact, nodes=nodes, tier=Tier.DRAM))
            self.wanted |= {(artifact, node) for node in nodes}
            number += 1
            await asyncio.sleep(0.2)


async def goes_on(engine, hand) -> None:
    """Until Postgres has what the log has now."""
    goal = await hand.log.last_seq()
    async with asyncio.timeout(60):
        while await committed_seq(engine) < goal:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def check_all(engine, hand, wanted) -> None:
    await hand.until(lambda view: len(view.operations) >= len(wanted), 60)
    await goes_on(engine, hand)
    last = await hand.log.last_seq()
    stored = await read_until(hand.log, last)
    rows = []
    async with engine.connect() as connection:
        position = await load_position(connection)
        async for batch in read_history(connection, position.log_epoch, to_seq=Seq(10**9)):
            rows += batch
    assert rows == list(stored)
    issued = [
        (operation.work.artifact, operation.node) for operation in hand.view.operations.values()
    ]
    assert sorted(issued) == sorted(wanted)
    assert hand.view.skipped == 0


async def test_writers_are_killed_and_stopped_and_all_goes_on(
    nats_server, database, engine, planes
):
    async with open_hand(nats_server.url) as hand:
        for plane in planes:
            await plane.start()
        await hand.join("n1", "n2", "n3")
        rounds = Rounds(hand)
        running = asyncio.create_task(rounds.run())
        killed = await find_writer(database, planes)
        killed.kill()
        await goes_on(engine, hand)
        assert (await hand.ask("status", Ask(), ClusterStatus)).problems == ()
        await killed.start()

        stopped = await find_writer(database, planes)
        assert stopped is not killed
        os.kill(stopped.process.pid, signal.SIGSTOP)
        async with asyncio.timeout(60):
            while await find_writer(database, planes) is stopped:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        await goes_on(engine, hand)
        status = await answered(hand)
        assert status.committed_seq > 0
        os.kill(stopped.process.pid, signal.SIGCONT)
        await asyncio.sleep(1.0)  # it finds out
        assert await find_writer(database, planes) is killed
        rounds.stopped = True
        await running
        await check_all(engine, hand, rounds.wanted)


async def answered(hand) -> ClusterStatus:
    """What a control plane says that is not stopped: who is asked first may be the other one."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await hand.ask("status", Ask(), ClusterStatus, timeout_s=2.0)
            except TimeoutError:
                continue
