import pytest

from tensorcast.controlplane.core.liveness import (
    Life,
    Watch,
    forgive,
    silent_leases,
    silent_nodes,
    update,
)
from tensorcast.schema.commands import LoseNode
from tensorcast.schema.events import LeaseReleased, NodeLeft
from tensorcast.schema.ids import Epoch, LeaseId, NodeId
from worlds import World

N1 = NodeId("n1")


@pytest.fixture
def world():
    world = World()
    world.node("n1", epoch=3)
    return world


def watch(world, now_s, known=None, heartbeats=None, renewals=None):
    return update(known or Watch(), world.view, heartbeats or {}, renewals or {}, now_s)


def silent(found, now_s, timeout_s=5.0):
    return [(c.node, c.silent_s) for c in silent_nodes(found, now_s, timeout_s)]


def test_whoever_is_new_gets_the_full_time(world):
    found = watch(world, 100.0)
    assert silent(found, 104.9) == []
    assert list(silent_nodes(found, 105.0, 5.0)) == [
        LoseNode(node=N1, epoch=Epoch(3), silent_s=5.0)
    ]


def test_a_heartbeat_begins_the_time_anew(world):
    found = watch(world, 100.0)
    found = watch(world, 104.0, found, {N1: Life(Epoch(3), 103.5)})
    assert silent(found, 108.0) == []
    assert silent(found, 108.5) == [(N1, 5.0)]


def test_a_heartbeat_of_an_older_life_counts_for_nothing(world):
    found = watch(world, 100.0)
    found = watch(world, 105.0, found, {N1: Life(Epoch(2), 104.9)})
    assert silent(found, 105.0) == [(N1, 5.0)]


def test_a_new_life_begins_the_time_anew(world):
    found = watch(world, 100.0)
    world.node("n1", epoch=4)
    assert silent(watch(world, 104.0, found), 108.0) == []


def test_a_node_that_is_not_up_is_not_watched(world):
    world.then(NodeLeft(node=N1, epoch=Epoch(3)))
    assert watch(world, 100.0) == Watch()


def test_a_lease_expires_without_renewal(world):
    lease = LeaseId("l1")
    world.lease(world.artifact("a", "n1"), name=lease)
    found = watch(world, 100.0)
    assert list(silent_leases(found, world.view, 129.0)) == []
    assert list(silent_leases(found, world.view, 130.0)) == [(lease, 30.0)]
    found = watch(world, 130.0, found, renewals={lease: 129.0})
    assert list(silent_leases(found, world.view, 158.0)) == []
    world.then(LeaseReleased(lease=lease))
    assert watch(world, 158.0, found).leases == {}


def test_a_pause_is_given_to_everybody(world):
    world.lease(world.artifact("a", "n1"))
    found = forgive(watch(world, 100.0), 160.0)
    assert silent(found, 164.0) == []
    assert silent(found, 165.0) == [(N1, 5.0)]
    assert list(silent_leases(found, world.view, 189.0)) == []
