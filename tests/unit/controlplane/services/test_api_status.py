import asyncio

import pytest

from rigs import Clock, running_rig
from tensorcast.controlplane.core.catalog import CATALOG
from tensorcast.controlplane.services.api_status import (
    find_idle_policies,
    find_losses,
    find_parked,
    find_problems,
    show_status,
)
from tensorcast.controlplane.services.heartbeats import Heartbeats
from tensorcast.log.port import NoRoom
from tensorcast.schema.api import Ask
from tensorcast.schema.cluster import ClusterView, park
from tensorcast.schema.events import ArtifactRemoved, KeyMoved, NodeLost, ReplicaLost
from tensorcast.schema.ids import Epoch, Key, NodeId, Seq
from tensorcast.schema.policy_events import PolicyConfigured, PolicyDisabled, PolicyEnabled
from worlds import World


def test_problems_are_said_in_words():
    clock = Clock()
    heard = Heartbeats(clock)
    world = World()
    for name in ("n1", "n2", "n3"):
        world.node(name)
    heard.hear_node(NodeId("n2"), b'{"epoch": 1}')
    clock.now_s += 4
    heard.hear_node(NodeId("n3"), b'{"epoch": 1, "tiers": {"dram": {"capacity": 100, "used": 99}}}')
    assert list(find_problems(world.view, heard)) == [
        "Node n2 has been silent for 4 s.",
        "The dram of node n3 is 99% full.",
    ]
    heard.hear_node(NodeId("n3"), b'{"epoch": 1, "trouble": "The disk of node n3 is full."}')
    assert "The disk of node n3 is full." in list(find_problems(world.view, heard))
    world.then(NodeLost(node=NodeId("n1"), epoch=Epoch(1), silent_s=5))
    assert next(find_problems(world.view, heard)).startswith("Node n1 is lost")


def test_enabled_policies_that_do_not_run_are_told():
    world = World()
    for event in (
        PolicyEnabled(policy="mine"),
        PolicyEnabled(policy="spread"),
        PolicyConfigured(policy="keep-last", parameters={"versions": "many"}),
        PolicyEnabled(policy="keep-last"),
    ):
        world.then(event)
    last, mine = find_idle_policies(world.view, CATALOG)
    assert last.startswith("Policy keep-last is enabled, but does not run: its code does not take")
    assert mine.startswith("Policy mine is enabled, but the control plane does not have its code")
    for name in ("mine", "keep-last"):
        world.then(PolicyDisabled(policy=name))
    assert list(find_idle_policies(world.view, CATALOG)) == []


@pytest.fixture
async def rig():
    async with running_rig() as rig:
        yield rig


async def problems_of(rig):
    return (await show_status(rig.desk, Ask())).problems


async def test_what_keeps_the_persister_from_copying_is_a_problem(rig):
    rig.progress.problem = "Postgres has no room left."
    assert await problems_of(rig) == ("The persister does not copy: Postgres has no room left.",)


async def test_a_snapshot_that_cannot_be_made_is_a_problem(rig):
    rig.progress.snapshots = "OverflowError: it is too long"
    (told,) = await problems_of(rig)
    assert told.startswith("No snapshot of the history can be made")
    assert "OverflowError: it is too long" in told


async def test_a_log_behind_what_was_seen_of_it_is_a_problem(rig):
    rig.history.lag = -30
    await rig.cursors.store("scheduler", Seq(20))
    first, second = await problems_of(rig)
    assert first.startswith("The persister has seen event 30, but the log ends at 0. Restore")
    assert second.startswith("The scheduler has seen event 20")


async def test_a_full_log_is_a_problem_and_status_is_answered(rig, monkeypatch):
    async def refuse():
        raise NoRoom("The NATS server has no room.")

    monkeypatch.setattr(rig.cursors, "check_room", refuse)
    async with asyncio.timeout(5):
        assert await problems_of(rig) == ("The NATS server has no room.",)


def lose(world, artifact, node):
    replica = world.view.replicas[world.replica(artifact, node)]
    world.then(ReplicaLost(replica=replica.id, epoch=Epoch(1), detail="as the test wants it"))


def test_artifacts_that_are_nowhere_are_counted_and_named():
    world = World()
    for name in ("n1", "n2"):
        world.node(name)
    kept = world.artifact("kept", "n1")
    world.then(NodeLost(node=NodeId("n1"), epoch=Epoch(1), silent_s=5))
    assert list(find_losses(world.view)) == [], f"{kept} may come back with its node"
    a = world.artifact("a", "n2")
    lose(world, a, "n2")
    world.filling(a, "n2")
    world.then(KeyMoved(key=Key("k"), artifact=a, previous=None, version=1))
    (told,) = find_losses(world.view)
    assert told.startswith(f"1 artifact is complete nowhere: {a} (k).")
    others = [world.artifact(name) for name in "bcde"]
    (told,) = find_losses(world.view)
    assert told.startswith("5 artifacts are complete nowhere: ")
    assert ", ..." in told
    for artifact in (a, *others):
        world.then(ArtifactRemoved(artifact=artifact))
    assert list(find_losses(world.view)) == []


def test_what_stands_still_is_named_with_its_cause():
    view = ClusterView()
    for number in range(5):
        view = park(view, Seq(number + 1), f"node/n{number}", "No.")
    view = park(view, Seq(6), "node/n0", "")
    told = list(find_parked(view, {("log", "postgres"): 2, ("kv", "fold"): 3}))
    assert "Event 1 and 1 after it cannot be taken: node/n0 stands still (No)." in told[0]
    assert told[3].startswith("2 more things stand still.")
    assert told[4].startswith("Postgres refuses what follows from 2 events of the log.")
    assert told[5].startswith("3 events of KV blocks cannot be taken.")
    assert list(find_parked(ClusterView(), {})) == []
