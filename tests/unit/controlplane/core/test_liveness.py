import pytest

from tensorcast.controlplane.core.liveness import (
    EngineLife,
    Life,
    Watch,
    forgive,
    silent_engines,
    silent_leases,
    silent_nodes,
    update,
)
from tensorcast.schema.commands import LoseNode
from tensorcast.schema.engine_events import EngineLeft
from tensorcast.schema.events import LeaseReleased, NodeLeft
from tensorcast.schema.ids import EngineId, Epoch, LeaseId, NodeId
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


# ---- engines


E1 = EngineId("e1")


def watch_engine(world, now_s, known=None, *, life="one", heard_s=None):
    heard = {} if heard_s is None else {E1: EngineLife(life, heard_s)}
    return update(known or Watch(), world.view, {}, {}, now_s, heard)


def silent_now(world, found, now_s):
    return list(silent_engines(found, world.view, now_s))


def test_an_engine_that_is_new_gets_its_full_time_and_each_sign_of_life_begins_it_anew(world):
    world.engine("e1")
    found = watch_engine(world, 100.0)
    assert silent_now(world, found, 114.9) == []
    assert silent_now(world, found, 115.0) == [(E1, "one", 15.0)]
    found = watch_engine(world, 110.0, found, heard_s=109.0)
    assert silent_now(world, found, 123.9) == []
    assert silent_now(world, found, 124.0) == [(E1, "one", 15.0)]


def test_signs_of_another_life_count_for_nothing(world):
    world.engine("e1")
    found = watch_engine(world, 100.0)
    found = watch_engine(world, 110.0, found, life="zero", heard_s=109.0)
    assert silent_now(world, found, 115.0) == [(E1, "one", 15.0)]
    world.engine("e1", life="two")
    found = watch_engine(world, 114.0, found, life="one", heard_s=90.0)
    assert silent_now(world, found, 128.9) == []


def test_who_has_left_is_not_watched_and_deafness_is_forgiven(world):
    world.engine("e1")
    found = forgive(watch_engine(world, 100.0), 110.0)
    assert silent_now(world, found, 124.9) == []
    world.then(EngineLeft(engine=E1, life="one"))
    assert watch_engine(world, 124.9, found).engines == {}
