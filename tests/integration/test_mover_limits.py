"""Never a byte over the budget: a mover in a control group whose limit is hardly more than it."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from cgroups import memory_group
from controlplanes import scheduling
from mover_nodes import MIB, Content, MoverNode, observing
from servers import NatsServer
from soak.watch import Watch
from tensorcast.schema.commands import RequestReplicas
from tensorcast.schema.errors import TensorCastError
from tensorcast.schema.ids import NodeId, Tier

BUDGET = 48 * MIB
MARGIN = 24 * MIB
"""For what the mover's own work needs at the same time: threads, buffers, reports."""
HAMMER_S = 2.5
pytestmark = pytest.mark.slow


class Hammer:
    """Threads that read and put at random."""

    def __init__(self, node: MoverNode, contents: list[Content]) -> None:
        self.done = self.refused = 0
        self.wrong: list[str] = []
        self._node = node
        self._contents = contents
        self._until = time.monotonic() + HAMMER_S

    def run(self, threads: int) -> None:
        running = [threading.Thread(target=self._live, args=[n]) for n in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()

    def _live(self, seed: int) -> None:
        dice = random.Random(seed)
        while time.monotonic() < self._until:
            content = dice.choice(self._contents)
            try:
                with self._node.application() as application:
                    if dice.random() < 0.3:
                        application.put(Content([dice.randrange(9 * MIB)], seed=dice.randrange(99)))
                    else:
                        with application.get(content.id, timeout_s=5) as reading:
                            if reading.bytes() != content.bytes:
                                self.wrong.append(content.id)
                self.done += 1
            except TensorCastError:
                self.refused += 1


async def test_a_mover_stays_within_its_budget_under_a_limit(
    tmp_path: Path, nats_server: NatsServer
):
    limits = {
        "TENSORCAST_DRAM_BYTES": str(BUDGET),
        "TENSORCAST_DISK_BYTES": str(100 * MIB),
        "TENSORCAST_ROOM_WAIT_S": "3",
    }
    contents = [Content([size * MIB + 77], seed=size) for size in (1, 2, 3, 5, 8, 13, 21, 34)]
    with memory_group() as group:
        n1 = MoverNode("n1", tmp_path / "n1", nats_server.url, **limits)
        n2 = MoverNode("n2", tmp_path / "n2", nats_server.url)
        try:
            n1.launch()
            group.take(n1.pid)
            n1.wait_until(lambda: n1._is_ready)
            n2.start()
            group.limit(group.usage() + BUDGET + MARGIN)
            async with observing(nats_server.url) as observer:
                with scheduling(nats_server.url, tmp_path / "controlplane.log"):
                    for n, content in enumerate(contents):
                        with n2.application() as application:
                            application.put(content, key=f"m{n}")
                        disk = RequestReplicas(
                            artifact=content.id, nodes=(NodeId("n1"),), tier=Tier.DISK
                        )
                        if n % 2:
                            await observer.execute(disk)
                    hammer = Hammer(n1, contents)
                    with Watch([n1], BUDGET, 100 * MIB) as watch:
                        await asyncio.to_thread(hammer.run, 5)
                    assert n1.is_running(), n1.log_text()
        finally:
            for node in (n1, n2):
                with suppress(ProcessLookupError):
                    node.close()
        assert group.kills() == 0
    assert hammer.wrong == []
    assert hammer.done > 10, (hammer.refused, n1.log_text())
    assert watch.breaches == []
    assert watch.most["n1"].size_bytes > BUDGET // 2
