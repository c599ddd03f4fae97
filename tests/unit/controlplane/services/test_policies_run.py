"""Policies as the scheduler runs them: by the log, and guarded."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from rigs import read_all, running_rig
from tensorcast.controlplane.core.catalog import CATALOG, kind_of, make_catalog
from tensorcast.controlplane.core.guard import ACTOR, Limits
from tensorcast.controlplane.core.policies.base import Configured, Parameters
from tensorcast.controlplane.services.refusals import Refusals
from tensorcast.controlplane.services.scheduler import Scheduler
from tensorcast.schema.commands import DisablePolicy, EmitSignal, EnablePolicy, PinArtifact
from tensorcast.schema.events import ArtifactPinned, KeyMoved, ReplicasRequested, SignalEmitted
from tensorcast.schema.ids import Key, Seq
from tensorcast.schema.policy_events import PolicyStopped
from tensorcast.schema.signals import Topic
from worlds import World

USUAL = Limits()


class Faulty(Configured[Parameters]):
    name = "faulty"

    def react(self, view, recorded):
        raise KeyError("what")


class Echo(Configured[Parameters]):
    """Answers every signal with a signal: it never ends by itself."""

    name = "echo"

    def react(self, view, recorded):
        if isinstance(recorded.event, SignalEmitted):
            return (EmitSignal(topic=Topic("echo"), data={"of": recorded.seq}),)
        return ()


def further(*classes, limits=USUAL):
    kinds = [kind_of(cls, "test", is_on=True) for cls in classes]
    return make_catalog((), [msgspec.structs.replace(kind, limits=limits) for kind in kinds])


@pytest.fixture
async def rig():
    async with running_rig() as rig:
        yield rig


class Vain(Configured[Parameters]):
    name = "vain"

    def react(self, view, recorded):
        if isinstance(recorded.event, SignalEmitted):
            return (PinArtifact(artifact="0" * 40),)
        return ()


async def test_what_is_answered_in_vain_is_counted(rig):
    await rig.append(SignalEmitted(topic=Topic("go")))
    refusals = Refusals()
    await play(rig, further(Vain), refusals)
    assert refusals.of("vain").times == 1
    assert refusals.of("vain").last.startswith("event 1: ")


async def play(rig, catalog, refusals=None):
    """Lets a scheduler answer everything, and what comes of that."""
    scheduler = Scheduler(
        rig.writer, rig.follower, reacted=Seq(0), catalog=catalog, refusals=refusals
    )
    async with asyncio.timeout(20):
        while scheduler.reacted < await rig.log.last_seq():
            stored = await rig.log.read_one(Seq(scheduler.reacted + 1))
            await scheduler.take(stored)
    return await read_all(rig.log)


async def test_a_policy_that_raises_is_stopped_and_named_and_the_rest_goes_on(rig):
    world = World()
    world.node("n1")
    world.node("n2")
    artifact = world.artifact("a", "n1")
    await rig.replay(world.events)
    await rig.append(ReplicasRequested(artifact=artifact, nodes=("n2",), tier="dram"))
    log = await play(rig, further(Faulty))
    (stopped,) = [one for one in log if isinstance(one.event, PolicyStopped)]
    assert (stopped.event.policy, stopped.event.reason) == ("faulty", "raised")
    assert "KeyError: 'what' (test_policies_run.py, line " in stopped.event.detail
    assert (stopped.actor, stopped.cause) == (ACTOR, log[0].id)
    assert len(rig.view.open_operations) == 1


async def test_a_flood_is_stopped_and_the_log_tells_why(rig):
    await rig.append(SignalEmitted(topic=Topic("hello")))
    log = await play(rig, further(Echo, limits=Limits(minute_commands_max=10)))
    (stopped,) = [one for one in log if isinstance(one.event, PolicyStopped)]
    echoes = [one for one in log if one.actor == "policy:echo"]
    assert stopped.event.reason == "flood"
    assert len(echoes) == 10
    assert stopped.cause == echoes[-1].id


async def test_two_policies_may_say_something_on_one_topic(rig):
    class Other(Echo):
        name = "other"

        def react(self, view, recorded):
            return super().react(view, recorded) if recorded.actor == "test" else ()

    await rig.append(SignalEmitted(topic=Topic("hello")))
    log = await play(rig, further(Other, type("Third", (Other,), {"name": "third"})))
    assert [one.actor for one in log[1:]] == ["policy:other", "policy:third"]


async def test_one_is_turned_on_and_off_by_events(rig):
    world = World()
    world.node("n1")
    old, new = world.artifact("old", "n1"), world.artifact("new")
    await rig.replay(world.events)

    async def move(key, artifact, previous):
        version = 1 if previous is None else 2
        await rig.append(
            KeyMoved(key=Key(key), artifact=artifact, previous=previous, version=version)
        )

    await move("before", old, None)
    await move("before", new, old)
    await rig.execute(EnablePolicy(policy="prewarm"))
    await move("on", old, None)
    await move("on", new, old)
    await rig.execute(DisablePolicy(policy="prewarm"))
    await move("off", old, None)
    await move("off", new, old)
    log = await play(rig, CATALOG)
    moves = [one for one in log if isinstance(one.event, KeyMoved) and one.event.version == 2]
    assert rig.view.artifacts[new].requests == ()
    requested = [one for one in log if isinstance(one.event, ReplicasRequested)]
    assert requested == [], "it was off again before anything was carried out"
    assert len(moves) == 3


async def test_what_is_decided_while_it_runs_names_its_event(rig):
    class Pin(Configured[Parameters]):
        name = "pin"

        def react(self, view, recorded):
            event = recorded.event
            return (PinArtifact(artifact=event.artifact),) if isinstance(event, KeyMoved) else ()

    world = World()
    world.node("n1")
    artifact = world.artifact("a", "n1")
    await rig.replay(world.events)
    seq = await rig.append(KeyMoved(key=Key("k"), artifact=artifact, previous=None, version=1))
    log = await play(rig, further(Pin))
    pinned = log[-1]
    assert isinstance(pinned.event, ArtifactPinned)
    assert (pinned.actor, pinned.cause) == ("policy:pin", log[seq - 1].id)
