"""A policy that never comes back is interrupted, and the control plane goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

import pytest

from rigs import running_rig
from samples import BEGIN, event_id
from tensorcast.controlplane.core.catalog import CATALOG, kind_of, make_catalog
from tensorcast.controlplane.core.decisions import decide_reactions
from tensorcast.controlplane.core.guard import ACTOR, SLOW
from tensorcast.controlplane.core.policies.base import Configured, Parameters
from tensorcast.controlplane.services.interruptions import SIGNAL, STUCK, interrupt_policies
from tensorcast.controlplane.services.scheduler import Scheduler
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.commands import EmitSignal, StopPolicy
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.events import SignalEmitted
from tensorcast.schema.ids import Seq
from tensorcast.schema.signals import Topic

LIMIT_S = 0.1


class Spins(Configured[Parameters]):
    name = "spins"

    def react(self, view, recorded):
        while True:
            with suppress(Exception):
                view = view or view


class Sleeps(Configured[Parameters]):
    name = "sleeps"

    def react(self, view, recorded):
        while True:
            with suppress(Exception):
                threading.Event().wait()


class Streams(Configured[Parameters]):
    """Its answer has no end, and no command."""

    name = "streams"

    def react(self, view, recorded):
        while True:
            if not view:
                yield None


class Says(Configured[Parameters]):
    name = "says"

    def react(self, view, recorded):
        if recorded.event.topic != "hello":
            return ()
        return (EmitSignal(topic=Topic("said")),)


class Ponders(Configured[Parameters]):
    name = "ponders"

    def __init__(self, parameters):
        threading.Event().wait()


@pytest.fixture(autouse=True)
def _as_before():
    before = signal.getsignal(SIGNAL)
    yield
    signal.signal(SIGNAL, before)


async def no_words(command, cause):
    raise AssertionError


def interrupted(*classes):
    further = [kind_of(cls, "test", is_on=True) for cls in classes]
    return interrupt_policies(make_catalog((), further), LIMIT_S, no_words)


def said(seq=1):
    event = SignalEmitted(topic=Topic("hello"))
    kind = "signal.emitted"
    return Recorded(
        seq=Seq(seq), id=event_id(seq), type=kind, v=1, at=BEGIN, actor="user:ada", event=event
    )


@pytest.mark.parametrize("cls", [Spins, Sleeps, Streams])
def test_one_that_never_answers_is_stopped_and_the_others_are_asked(cls):
    catalog = interrupted(cls, Says)
    view = ClusterView()
    decisions = decide_reactions(view, said(), catalog.running(view), catalog=catalog)
    stopped, other = decisions
    (command,) = stopped.commands
    assert isinstance(command, StopPolicy)
    assert (stopped.policy, command.reason, other.policy) == (cls.name, SLOW, "says")
    assert "did not answer event 1 (signal.emitted) within 0.1 s" in command.detail


def test_one_that_cannot_be_made_is_refused():
    catalog = interrupted(Ponders)
    with pytest.raises(InvalidArgument, match=r"ponders was not made of its parameters in 0\.1 s"):
        catalog.find("ponders").make(Parameters())
    assert "ponders" not in {policy.name for policy in catalog.running(ClusterView())}


def test_those_that_are_built_in_have_no_limit():
    assert interrupt_policies(CATALOG, LIMIT_S, no_words) is CATALOG


async def test_the_scheduler_goes_on_and_asks_it_no_more():
    async with running_rig() as rig:
        catalog = interrupted(Sleeps, Says)
        await rig.append(SignalEmitted(topic=Topic("hello")))
        scheduler = Scheduler(rig.writer, rig.follower, reacted=Seq(0), catalog=catalog)
        async with asyncio.timeout(30):
            while scheduler.reacted < await rig.log.last_seq():
                await scheduler.take(await rig.log.read_one(Seq(scheduler.reacted + 1)))
        assert rig.view.policies["sleeps"].reason == SLOW
        assert rig.view.policies["sleeps"].actor == ACTOR
        assert "said" in rig.view.signals

        # Another one that begins at the same event does not even ask it.
        catalog = make_catalog((), [kind_of(Sleeps, "test", is_on=True)])
        other = Scheduler(rig.writer, rig.follower, reacted=Seq(0), catalog=catalog)
        for seq in range(1, await rig.log.last_seq() + 1):
            await other.take(await rig.log.read_one(Seq(seq)))


STUBBORN = """
import sys, time
sys.path[:0] = {path!r}
import test_interruptions as t

class Stubborn(t.Configured):
    name = "stubborn"

    def react(self, view, recorded):
        while True:
            try:
                while True:
                    time.sleep(0.01)
            except BaseException:
                pass

async def last_words(command, cause):
    print(command.policy, command.reason, cause, command.detail, flush=True)

further = [t.kind_of(Stubborn, "test", is_on=True)]
catalog = t.interrupt_policies(t.make_catalog((), further), t.LIMIT_S, last_words)
view = t.ClusterView()
t.decide_reactions(view, t.said(), catalog.running(view), catalog=catalog)
"""


def test_one_that_catches_everything_ends_the_process_with_its_last_words():
    path = [os.path.dirname(__file__), *sys.path]
    done = subprocess.run(
        [sys.executable, "-c", STUBBORN.format(path=path)],
        capture_output=True,
        timeout=60,
        text=True,
    )
    assert done.returncode == STUCK, done.stderr
    assert done.stdout.startswith(f"stubborn slow {event_id(1)} Policy stubborn did not answer")
    assert "could not be interrupted" in done.stdout
