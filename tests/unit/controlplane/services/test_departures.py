"""What was told of engines goes when they have stopped, and not before."""

from __future__ import annotations

from datetime import timedelta

import pytest

from rigs import running_rig
from tensorcast.controlplane.services.departures import FORGET_S, clear_departed
from tensorcast.controlplane.store.engine_block_rows import Told
from tensorcast.log.identity import now
from tensorcast.schema.block_events import decode_blocks
from tensorcast.schema.engine_blocks import EngineBlocksCleared
from tensorcast.schema.engine_events import EngineLeft, EngineRegistered
from tensorcast.schema.events import SignalEmitted
from tensorcast.schema.ids import EngineId
from tensorcast.schema.signals import Topic

E1 = EngineId("e1")
REGISTERED = EngineRegistered(
    engine=E1, life="l", kind="vllm", node=None, model="", url="", ttl_s=15.0
)
LEFT = EngineLeft(engine=E1, life="l")


@pytest.fixture
async def rig():
    async with running_rig() as rig:
        old = now() - timedelta(seconds=2 * FORGET_S)
        rig.blocks.engines = {"e1": (Told("one", True, "", 5, 3, 7, old), (4,))}
        yield rig


async def cleared(rig):
    """The events that one look appends."""
    await clear_departed(rig.desk, now())
    await clear_departed(rig.desk, now())  # another control plane
    reach = await rig.block_log.reach()
    if not reach.last:
        return []
    async for batch in rig.block_log.read(reach.created, after=0):
        return [decode_blocks(one.payload, one.seq).event for one in batch]


async def test_an_engine_that_has_stopped_is_cleared_once(rig):
    await rig.append(REGISTERED)
    await rig.append(LEFT)
    assert await cleared(rig) == [
        EngineBlocksCleared(
            engine=E1, life="one", batch=5, is_exact=False, reason="The engine has stopped."
        )
    ]


async def test_an_engine_that_runs_or_never_registered_stays(rig):
    assert await cleared(rig) == []
    await rig.append(REGISTERED)
    assert await cleared(rig) == []


async def test_an_engine_that_is_watched_stays(rig):
    await rig.append(REGISTERED)
    await rig.append(LEFT)
    rig.blocks.engines = {"e1": (Told("one", True, "", 5, 3, 7, now()), (4,))}
    assert await cleared(rig) == []
    old = now() - timedelta(seconds=2 * FORGET_S)
    rig.blocks.engines = {"e1": (Told("one", True, "", 5, 0, 7, old), ())}
    assert await cleared(rig) == [], "it holds nothing"


async def test_the_load_of_an_engine_is_a_sign_that_it_is_watched(rig):
    rig.blocks.engines = {
        "e1": (Told("one", True, "", 5, 3, 7, now() - timedelta(days=40_000)), (4,))
    }
    await rig.append(REGISTERED)
    await rig.append(LEFT)
    await rig.append(SignalEmitted(topic=Topic("engine.load.e1")))
    heard = rig.view.signals["engine.load.e1"].last_at
    await clear_departed(rig.desk, heard + timedelta(seconds=FORGET_S - 1))
    assert (await rig.block_log.reach()).last == 0
    await clear_departed(rig.desk, heard + timedelta(seconds=FORGET_S + 1))
    assert (await rig.block_log.reach()).last == 1
