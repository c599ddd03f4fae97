"""Broadcasts, stripes and faults over limited links: real movers in network namespaces.

What the cards of the hosts count shows who sent how much, without a look at the clock.
"""

from __future__ import annotations

import asyncio

import pytest

from lab_cluster import Cluster, cluster
from mover_nodes import MIB, Content
from netlab import require_lab
from tensorcast.schema.aggregates.operation import OperationStatus
from tensorcast.schema.commands import LoseNode
from tensorcast.schema.events import OperationIssued, OperationRerouted
from tensorcast.schema.ids import Epoch, NodeId

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("_lab")]
SIZE = 24 * MIB
CONTENT = Content([SIZE])


@pytest.fixture(scope="module")
def _lab() -> None:
    require_lab()


def start(made: Cluster, *hosts: str) -> None:
    made.start(*hosts, dram_bytes=64 * MIB)
    made.put(hosts[0], CONTENT)


async def plan(made: Cluster) -> dict[str, tuple[str, ...]]:
    """The sources of each pull when it was issued."""
    return {
        str(recorded.event.node): recorded.event.work.sources
        for recorded in await made.observer.events()
        if isinstance(recorded.event, OperationIssued)
    }


ONCE = [(1, OperationStatus.SUCCEEDED)]


async def test_a_chain_sends_everything_once_and_survives_the_death_of_a_relay():
    async with cluster("s", "r1", "r2", "r3", "r4", rate="200mbit") as made:
        start(made, "s", "r1", "r2", "r3", "r4")
        await made.request(CONTENT, "r1", "r2", "r3")
        await made.received("r3", CONTENT, 0.2)
        await made.request(CONTENT, "r4")  # it comes late
        await made.received("r2", CONTENT, 0.1)
        assert made.lab.sent_bytes("s") < 1.3 * SIZE, "only the first of the chain pulls from it"
        made.movers["r1"].kill()
        await made.observer.execute(LoseNode(node=NodeId("r1"), epoch=Epoch(1), silent_s=1.0))
        await made.took(CONTENT, "r2", "r3", "r4")
        assert all(made.read(host, CONTENT) for host in ("r2", "r3", "r4"))
        assert await plan(made) == {"r1": ("s",), "r2": ("r1",), "r3": ("r2",), "r4": ("r3",)}
        for host in ("r2", "r3", "r4"):
            assert await made.tries(host) == ONCE
            assert made.lab.received_bytes(host) < 1.5 * SIZE, "nothing began anew"
        events = [recorded.event for recorded in await made.observer.events()]
        (detour,) = [event for event in events if isinstance(event, OperationRerouted)]
        assert detour.sources == ("s",)


async def test_readers_that_come_at_once_form_a_chain_without_being_asked():
    async with cluster("s", "r1", "r2", "r3", rate="200mbit") as made:
        start(made, "s", "r1", "r2", "r3")
        hosts = ("r1", "r2", "r3")
        reads = [asyncio.to_thread(made.read, host, CONTENT) for host in hosts]
        assert all(await asyncio.gather(*reads))
        assert made.lab.sent_bytes("s") < 1.5 * SIZE, "the others pulled from each other"
        assert all(made.lab.received_bytes(host) < 1.5 * SIZE for host in hosts)


async def test_a_pull_is_striped_and_goes_on_when_a_source_dies():
    async with cluster("a", "b", "c", "sink", rate="100mbit") as made:
        made.lab.limit("sink", None)
        start(made, "a", "b", "c", "sink")
        await made.replicate(CONTENT, "b", "c")
        before = {host: made.lab.sent_bytes(host) for host in "abc"}
        await made.request(CONTENT, "sink")
        await made.received("sink", CONTENT, 0.4)
        made.movers["b"].kill()
        await made.took(CONTENT, "sink")
        sent = {host: made.lab.sent_bytes(host) - before[host] for host in "abc"}
        assert min(sent.values()) > 0.08 * SIZE, "all three sent their share"
        assert made.lab.received_bytes("sink") < 1.4 * SIZE
        assert made.read("sink", CONTENT)
        assert await made.tries("sink") == ONCE


async def test_loss_delay_and_a_link_that_is_cut_for_a_while():
    async with cluster("s", "sink", rate="100mbit", far=("s",)) as made:
        made.lab.wires["s"].delay_ms = 20.0
        made.lab.wires["s"].loss_percent = 1.0
        start(made, "s", "sink")
        await made.request(CONTENT, "sink")
        await made.received("sink", CONTENT, 0.3)
        made.lab.cut("s")
        await asyncio.sleep(1.0)
        made.lab.mend("s")
        await made.took(CONTENT, "sink")
        assert made.read("sink", CONTENT)
        assert await made.tries("sink") == ONCE
        assert made.lab.received_bytes("sink") < 1.6 * SIZE
