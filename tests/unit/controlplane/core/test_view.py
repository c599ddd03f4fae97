import pytest

from samples import MIB
from tensorcast.controlplane.core import view as questions
from tensorcast.schema.events import (
    NodeCordoned,
    NodeLeft,
    NodeLost,
    OperationCancelled,
    ReplicaEvicting,
    ReplicaGone,
)
from tensorcast.schema.faults import FaultKind
from tensorcast.schema.ids import Epoch, NodeId, Tier
from tensorcast.schema.work import Evict, Load, Materialize, Persist, Verify
from worlds import World

N1, N2 = NodeId("n1"), NodeId("n2")


@pytest.fixture
def world():
    world = World()
    world.node("n1", dram=16 * MIB)
    world.node("n2", dram=32 * MIB)
    return world


def test_room_is_capacity_minus_what_live_replicas_take(world):
    a = world.artifact("a", "n1")
    world.filling(world.artifact("b"), "n1")
    assert questions.free_bytes(world.view, N1, Tier.DRAM) == 8 * MIB
    world.then(ReplicaEvicting(replica=world.replica(a, "n1"), epoch=Epoch(1), reason=""))
    assert questions.free_bytes(world.view, N1, Tier.DRAM) == 8 * MIB
    world.then(ReplicaGone(replica=world.replica(a, "n1"), epoch=Epoch(1)))
    assert questions.free_bytes(world.view, N1, Tier.DRAM) == 12 * MIB
    assert questions.free_bytes(world.view, NodeId("n9"), Tier.DRAM) == 0


def test_room_that_operations_will_take_is_spoken_for(world):
    a = world.artifact("a", "n1")
    world.issue("op-1", "n2", Materialize(artifact=a))
    assert questions.rooms(world.view, Tier.DRAM) == {N1: 12 * MIB, N2: 28 * MIB}
    world.filling(a, "n2")
    assert questions.rooms(world.view, Tier.DRAM) == {N1: 12 * MIB, N2: 28 * MIB}


def test_a_place_is_up_open_and_roomy(world):
    a = world.artifact("a")
    room = questions.rooms(world.view, Tier.DRAM)
    assert questions.choose_node(world.view, a, Tier.DRAM, room) == N2
    assert questions.choose_node(world.view, a, Tier.DRAM, room, avoid=[N2]) == N1
    assert questions.choose_node(world.view, a, Tier.DRAM, {N1: 4 * MIB, N2: 4 * MIB}) == N1
    assert questions.choose_node(world.view, a, Tier.DRAM, {N1: 3 * MIB}) is None
    world.then(NodeCordoned(node=N2))
    assert questions.rooms(world.view, Tier.DRAM).keys() == {N1}
    world.then(NodeLost(node=N1, epoch=Epoch(1), silent_s=5))
    assert questions.rooms(world.view, Tier.DRAM) == {}


def test_ready_replicas_are_complete_and_up_and_dram_first(world):
    a = world.artifact("a", "n2")
    world.ready(a, "n1", Tier.DISK)
    world.node("n3")
    world.filling(a, "n3")
    assert [(r.node, r.tier) for r in questions.ready_replicas(world.view, a)] == [
        ("n2", Tier.DRAM),
        ("n1", Tier.DISK),
    ]
    world.then(NodeLeft(node=N2, epoch=Epoch(1)))
    assert questions.source_nodes(world.view, a) == (N1,)


def test_claims(world):
    a = world.artifact("a", "n1")
    assert not questions.is_leased(world.view, a, N1)
    world.lease(a, "n1")
    assert questions.is_leased(world.view, a, N1)
    assert not questions.is_leased(world.view, a, N2)
    world.lease(a, name="l2")
    assert questions.is_leased(world.view, a, N2)
    assert not questions.is_pinned(world.view, a)


def test_a_survivor_is_another_complete_copy_that_stays(world):
    a = world.artifact("a", "n1")
    replica = world.view.replicas[world.replica(a, "n1")]
    assert not questions.has_survivor(world.view, replica)
    world.ready(a, "n2")
    assert questions.has_survivor(world.view, replica)
    world.issue("op-1", "n2", Evict(artifact=a, tier=Tier.DRAM))
    assert not questions.has_survivor(world.view, replica)


@pytest.mark.parametrize(
    ("kind", "pending"), [(FaultKind.UNAVAILABLE, True), (FaultKind.INVALID, False)]
)
def test_a_failed_operation_is_pending_while_a_retry_will_come(world, kind, pending):
    a = world.artifact("a", "n1")
    operation = world.issue("op-1", "n2", Materialize(artifact=a))
    world.fail(operation, kind)
    assert questions.will_retry(world.view.operations[operation]) is pending
    assert questions.is_making(world.view, a, N2, Tier.DRAM) is pending
    world.then(OperationCancelled(operation=operation, reason="enough"))
    assert not questions.is_making(world.view, a, N2, Tier.DRAM)


def test_a_check_that_found_damage_is_not_repeated(world):
    a = world.artifact("a", "n1")
    operation = world.issue("op-1", "n1", Verify(artifact=a, tier=Tier.DRAM))
    world.fail(operation, FaultKind.CORRUPT)
    assert not questions.will_retry(world.view.operations[operation])
    other = world.issue("op-2", "n1", Verify(artifact=a, tier=Tier.DRAM))
    world.fail(other, FaultKind.UNAVAILABLE)
    assert questions.will_retry(world.view.operations[other])


def test_open_operations_are_found_by_kind(world):
    a = world.artifact("a", "n1")
    operation = world.issue("op-1", "n1", Persist(artifact=a))
    assert questions.open_operation(world.view, a, N1, "persist").id == operation
    assert questions.open_operation(world.view, a, N1, "load") is None
    assert questions.open_operation(world.view, a, N2, "persist") is None
    assert [found.id for found in questions.open_operations_at(world.view, N1)] == [operation]
    world.succeed(operation)
    assert questions.open_operation(world.view, a, N1, "persist") is None


def test_filling_a_tier_is_one_aim_however_it_is_done(world):
    a = world.artifact("a")
    assert questions.aim_of(N1, Load(artifact=a)) == questions.aim_of(N1, Materialize(artifact=a))
    works = [
        Load(artifact=a),
        Persist(artifact=a),
        *(Evict(artifact=a, tier=tier) for tier in Tier),
        *(Verify(artifact=a, tier=tier) for tier in Tier),
    ]
    assert len({questions.aim_of(N1, work) for work in works}) == len(works)
    to_disk = Materialize(artifact=a, tier=Tier.DISK)
    assert questions.aim_of(N1, to_disk) == questions.aim_of(N1, Persist(artifact=a))
