import asyncio

import pytest

import story
from rigs import running_rig
from tensorcast.controlplane.services.scheduler import Scheduler
from tensorcast.log.port import Stored
from tensorcast.schema.aggregates.operation import OPEN, OperationStatus
from tensorcast.schema.codec import encode
from tensorcast.schema.events import ArtifactRemoved, OperationSucceeded
from tensorcast.schema.ids import Epoch, NodeId, Seq, Tier
from tensorcast.schema.work import Evict, Materialize
from worlds import World


def stored_as(recorded):
    return Stored(recorded.seq, "", encode(story.to_draft(recorded)))


class Overtaken:
    """A writer before whose first append something else gets into the log, unseen by the view on
    which that append was decided."""

    def __init__(self, rig, *events):
        self._rig = rig
        self._events = events

    async def append(self, drafts):
        events, self._events = self._events, ()
        if events:
            await self._rig.append(*events)
        return await self._rig.writer.append(drafts)

    async def last_seq(self):
        return await self._rig.writer.last_seq()


@pytest.fixture
async def rig():
    async with running_rig() as rig:
        yield rig


async def test_a_refused_command_does_not_take_the_others_with_it(rig):
    """A removed artifact whose fill ends at the same moment: the fill cannot be cancelled any
    more, and all its replicas go nevertheless."""
    world = World()
    world.node("n1")
    world.node("n2")
    artifact = world.artifact("a", "n1")
    fill = world.issue("op-1", "n2", Materialize(artifact=artifact, sources=(NodeId("n1"),)))
    world.start(fill)
    world.ready(artifact, "n2")
    await rig.replay(world.events)
    removed = world.then(ArtifactRemoved(artifact=artifact))
    await rig.append(removed.event)
    succeeded = OperationSucceeded(operation=fill, epoch=Epoch(1), bytes_moved=1)
    scheduler = Scheduler(Overtaken(rig, succeeded), rig.follower, reacted=Seq(removed.seq - 1))
    async with asyncio.timeout(10):
        for recorded in world.events:
            await scheduler.take(stored_as(recorded))
    assert rig.view.operations[fill].status is OperationStatus.SUCCEEDED
    issued = [found for found in rig.view.operations.values() if found.status in OPEN]
    assert sorted((found.node, found.work) for found in issued) == [
        (node, Evict(artifact=artifact, tier=Tier.DRAM, reason="removed")) for node in ("n1", "n2")
    ]
