import pytest

from rigs import read_all, running_rig
from tensorcast.controlplane.services.timers import Timers
from tensorcast.schema.events import LeaseExpired, NodeLost
from tensorcast.schema.ids import LeaseId, NodeId
from worlds import World

TICK_S = 0.5


@pytest.fixture
async def rig():
    world = World()
    world.node("n1")
    world.lease(world.artifact("a", "n1"))
    async with running_rig() as rig:
        await rig.replay(world.events)
        yield rig


def make_timers(rig):
    return Timers(rig.writer, rig.follower, rig.heartbeats, node_timeout_s=5.0)


async def pass_time(rig, *timers, seconds, can_hear=True, during=lambda: None):
    for _ in range(int(seconds / TICK_S)):
        rig.clock.now_s += TICK_S
        during()
        for each in timers:
            await each.tick(TICK_S, can_hear=can_hear)


async def of_type(rig, kind):
    return [one for one in await read_all(rig.log) if isinstance(one.event, kind)]


async def test_a_silent_node_is_lost_once(rig):
    timers = make_timers(rig)
    await pass_time(rig, timers, seconds=5.0)
    assert await of_type(rig, NodeLost) == [], "a service that has just started gives full time"
    await pass_time(rig, timers, seconds=10.0)
    (lost,) = await of_type(rig, NodeLost)
    assert (lost.event.node, lost.actor) == ("n1", "timers")
    assert 5.0 <= lost.event.silent_s <= 6.0


async def test_a_node_that_is_heard_stays(rig):
    timers = make_timers(rig)
    beat = b'{"epoch": 1}'
    await pass_time(
        rig, timers, seconds=20, during=lambda: rig.heartbeats.hear_node(NodeId("n1"), beat)
    )
    assert await of_type(rig, NodeLost) == []


async def test_two_timers_lose_a_node_once(rig):
    await pass_time(rig, make_timers(rig), make_timers(rig), seconds=20.0)
    assert len(await of_type(rig, NodeLost)) == 1
    assert rig.view.skipped == 0


async def test_a_lease_that_is_not_renewed_expires(rig):
    timers = make_timers(rig)
    lease = LeaseId("l1")
    await pass_time(rig, timers, seconds=60, during=lambda: rig.heartbeats.hear_lease(lease))
    assert await of_type(rig, LeaseExpired) == []
    await pass_time(rig, timers, seconds=40)
    (expired,) = await of_type(rig, LeaseExpired)
    assert expired.event.lease == lease
    assert expired.at > expired.event.last_seen


async def test_who_cannot_hear_loses_nobody(rig):
    timers = make_timers(rig)
    await pass_time(rig, timers, seconds=60, can_hear=False)
    await pass_time(rig, timers, seconds=4)
    assert await of_type(rig, NodeLost) == []
    await pass_time(rig, timers, seconds=2)
    assert len(await of_type(rig, NodeLost)) == 1


async def test_a_pause_of_the_process_is_forgiven(rig):
    timers = make_timers(rig)
    await pass_time(rig, timers, seconds=2)
    rig.clock.now_s += 3600
    await timers.tick(TICK_S, can_hear=True)
    assert await of_type(rig, NodeLost) == []
