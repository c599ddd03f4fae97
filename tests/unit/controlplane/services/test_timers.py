import pytest

from rigs import read_all, running_rig
from tensorcast.controlplane.services.timers import Timers
from tensorcast.schema.commands import JoinNode, RegisterEngine
from tensorcast.schema.engine_events import EngineLost
from tensorcast.schema.events import LeaseExpired, NodeLost
from tensorcast.schema.ids import EngineId, Epoch, LeaseId, NodeId
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


class Link:
    """The way to the server and back. While it is frozen, each word waits until it is late."""

    def __init__(self, clock):
        self.frozen = False
        self._clock = clock

    async def returns(self, timeout_s):
        if self.frozen:
            self._clock.now_s += timeout_s
        return not self.frozen


def make_timers(rig, link=None):
    hears = (link or Link(rig.clock)).returns
    return Timers(rig.writer, rig.follower, rig.heartbeats, hears, node_timeout_s=5.0)


async def pass_time(rig, *timers, seconds, during=lambda: None):
    for _ in range(int(seconds / TICK_S)):
        rig.clock.now_s += TICK_S
        during()
        for each in timers:
            await each.tick(TICK_S)


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
    """A frozen server keeps the connection open, and swallows what the nodes say."""
    link = Link(rig.clock)
    timers = make_timers(rig, link)
    await pass_time(rig, timers, seconds=4.5)
    link.frozen = True
    await pass_time(rig, timers, seconds=10)
    link.frozen = False
    await pass_time(rig, timers, seconds=4.5)
    assert await of_type(rig, NodeLost) == [], "everybody has the full time again"
    await pass_time(rig, timers, seconds=1)
    assert len(await of_type(rig, NodeLost)) == 1


async def test_a_verdict_waits_for_another_look_when_the_one_before_took_long(rig):
    await rig.execute(
        JoinNode(node=NodeId("n2"), epoch=Epoch(1), address="n2:1", tiers={}, transports=("tcp",))
    )
    timers = make_timers(rig)
    await pass_time(rig, timers, seconds=4.5)
    writer, append = rig.writer, rig.writer.append

    async def append_slowly(drafts):
        rig.clock.now_s += 20
        rig.heartbeats.hear_node(NodeId("n2"), b'{"epoch": 1}')
        return await append(drafts)

    writer.append = append_slowly
    await pass_time(rig, timers, seconds=1)
    await pass_time(rig, timers, seconds=4)
    assert [one.event.node for one in await of_type(rig, NodeLost)] == ["n1"]


async def test_a_pause_of_the_process_is_forgiven(rig):
    timers = make_timers(rig)
    await pass_time(rig, timers, seconds=2)
    rig.clock.now_s += 3600
    await timers.tick(TICK_S)
    assert await of_type(rig, NodeLost) == []


async def test_a_silent_engine_is_lost_once(rig):
    engine = EngineId("e1")
    await rig.execute(RegisterEngine(engine=engine, life="one", kind="vllm", ttl_s=15.0))
    timers = (make_timers(rig), make_timers(rig))
    beat = b'{"life": "one"}'
    await pass_time(
        rig, *timers, seconds=40, during=lambda: rig.heartbeats.hear_engine(engine, beat)
    )
    assert await of_type(rig, EngineLost) == []
    other = b'{"life": "zero"}'
    await pass_time(
        rig, *timers, seconds=40, during=lambda: rig.heartbeats.hear_engine(engine, other)
    )
    (lost,) = await of_type(rig, EngineLost)
    assert (lost.event.engine, lost.event.life, lost.actor) == ("e1", "one", "timers")
    assert lost.event.last_seen < lost.at
    assert rig.view.engines_up == frozenset()
