import pytest

from samples import MIB
from tensorcast.controlplane.core.policies.evict import Evict
from tensorcast.controlplane.core.view import PRESSURE, REMOVED
from tensorcast.schema.commands import CancelOperation
from tensorcast.schema.events import (
    ArtifactPinned,
    ArtifactRemoved,
    LeaseExpired,
    LeaseReleased,
    NodeLeft,
    NodePressured,
)
from tensorcast.schema.ids import Epoch, LeaseId, NodeId, Overflow, Tier
from tensorcast.schema.work import Evict as EvictWork
from tensorcast.schema.work import Load, Materialize, Persist, Verify
from worlds import World


def react(world):
    """What the policy wants done about the last event: (node, work) of each operation, and the
    operations that it cancels."""
    return [
        ("cancel", command.operation)
        if isinstance(command, CancelOperation)
        else (str(command.node), command.work)
        for command in Evict().react(world.view, world.last)
    ]


def press(world, *artifacts, needed=4 * MIB, node="n1", tier=Tier.DRAM):
    """The node's mover needs room and offers these replicas, the coldest first."""
    return world.then(
        NodePressured(
            node=NodeId(node),
            epoch=Epoch(1),
            tier=tier,
            needed_bytes=needed,
            candidates=tuple(world.replica(artifact, node, tier) for artifact in artifacts),
        )
    )


def two_nodes(disk=64 * MIB, overflow=Overflow.SPILL):
    world = World()
    world.node("n1", disk=disk, overflow=overflow)
    world.node("n2")
    return world


def drop(artifact, tier=Tier.DRAM, reason=PRESSURE, node="n1"):
    return node, EvictWork(artifact=artifact, tier=tier, reason=reason)


def test_the_coldest_go_until_the_need_is_covered():
    world = two_nodes()
    a, b, c = (world.artifact(name, "n1", "n2") for name in "abc")
    press(world, b, a, c, needed=8 * MIB)
    assert react(world) == [drop(b), drop(a)]


def test_what_somebody_asked_for_goes_last():
    world = two_nodes()
    a, b = (world.artifact(name, "n1", "n2") for name in "ab")
    world.request(a, "n1")
    press(world, a, b, needed=4 * MIB)
    assert react(world) == [drop(b)]
    press(world, a, b, needed=8 * MIB)
    assert react(world) == [drop(b), drop(a)]


@pytest.mark.parametrize("claim", ["pin", "lease here", "lease everywhere"])
def test_never_what_is_claimed(claim):
    world = two_nodes()
    a = world.artifact("a", "n1", "n2")
    match claim:
        case "pin":
            world.then(ArtifactPinned(artifact=a))
        case "lease here":
            world.lease(a, "n1")
        case "lease everywhere":
            world.lease(a)
    press(world, a)
    assert react(world) == []


def test_a_lease_on_another_node_does_not_count_here():
    world = two_nodes()
    a = world.artifact("a", "n1", "n2")
    world.lease(a, "n2")
    press(world, a)
    assert react(world) == [drop(a)]


def test_never_what_is_filling():
    world = two_nodes()
    a = world.artifact("a", "n2")
    world.filling(a, "n1")
    press(world, a)
    assert react(world) == []


@pytest.mark.parametrize("kind", [Persist, Load])
def test_never_what_an_operation_of_the_node_uses(kind):
    world = two_nodes()
    a = world.artifact("a", "n1", "n2")
    world.issue("op-1", "n1", kind(artifact=a))
    press(world, a)
    assert react(world) == []


def test_never_what_is_being_checked():
    world = two_nodes()
    a = world.artifact("a", "n1", "n2")
    world.issue("op-1", "n1", Verify(artifact=a, tier=Tier.DRAM))
    press(world, a)
    assert react(world) == []


def test_the_last_copy_is_written_to_disk_before_it_goes():
    world = two_nodes()
    a = world.artifact("a", "n1")
    press(world, a)
    assert react(world) == [("n1", Persist(artifact=a))]
    operation = world.issue("op-1", "n1", Persist(artifact=a), policy="evict")
    world.start(operation)
    world.ready(a, "n1", Tier.DISK)
    assert react(world) == [drop(a)]


def test_a_copy_on_a_node_that_is_away_is_no_copy():
    world = two_nodes()
    a = world.artifact("a", "n1", "n2")
    world.then(NodeLeft(node=NodeId("n2"), epoch=Epoch(1)))
    press(world, a)
    assert react(world) == [("n1", Persist(artifact=a))]


def test_a_copy_that_is_being_evicted_is_no_copy():
    world = two_nodes()
    a = world.artifact("a", "n1", "n2")
    world.issue("op-1", "n2", EvictWork(artifact=a, tier=Tier.DRAM), policy="evict")
    press(world, a)
    assert react(world) == [("n1", Persist(artifact=a))]


def test_the_last_copy_stays_when_the_disk_is_full():
    world = two_nodes(disk=3 * MIB)
    a = world.artifact("a", "n1")
    press(world, a)
    assert react(world) == []


def test_a_disk_that_can_be_cleared_has_room():
    world = two_nodes(disk=4 * MIB)
    b = world.artifact("b", "n2")
    world.ready(b, "n1", Tier.DISK)
    a = world.artifact("a", "n1")
    press(world, a)
    assert react(world) == [("n1", Persist(artifact=a))]
    world.request(b, "n1", tier=Tier.DISK)
    press(world, a)
    assert react(world) == []


def test_what_comes_to_the_disk_has_its_room():
    world = two_nodes(disk=4 * MIB)
    a, b = world.artifact("a", "n1"), world.artifact("b", "n2")
    world.issue("op-1", "n1", Materialize(artifact=b, tier=Tier.DISK))
    press(world, a)
    assert react(world) == []


def test_a_node_that_only_evicts_keeps_last_copies():
    world = two_nodes(overflow=Overflow.EVICT)
    a = world.artifact("a", "n1")
    b = world.artifact("b", "n1", "n2")
    press(world, a, b, needed=8 * MIB)
    assert react(world) == [drop(b)]


def test_a_node_that_rejects_keeps_all_in_memory():
    world = two_nodes(overflow=Overflow.REJECT)
    a = world.artifact("a", "n1", "n2")
    press(world, a)
    assert react(world) == []
    world.ready(a, "n1", Tier.DISK)
    press(world, a, tier=Tier.DISK)
    assert react(world) == [drop(a, Tier.DISK)]


def test_the_disk_gives_up_first_what_another_disk_has():
    world = two_nodes()
    a, b = (world.artifact(name, "n1", "n2", tier=Tier.DRAM) for name in "ab")
    world.ready(a, "n1", Tier.DISK)
    world.ready(b, "n1", Tier.DISK)
    world.ready(b, "n2", Tier.DISK)
    press(world, a, b, tier=Tier.DISK)
    assert react(world) == [drop(b, Tier.DISK)]


def test_the_disk_keeps_what_somebody_asked_for_there():
    world = two_nodes()
    a = world.artifact("a", "n1")
    world.ready(a, "n1", Tier.DISK)
    world.request(a, "n1", tier=Tier.DISK)
    press(world, a, tier=Tier.DISK)
    assert react(world) == []


def test_a_spill_makes_no_room_on_the_disk():
    world = two_nodes()
    a, b = world.artifact("a", "n1"), world.artifact("b", "n2")
    world.ready(b, "n1", Tier.DISK)
    world.issue("op-1", "n1", Persist(artifact=a), policy="evict")
    press(world, b, tier=Tier.DISK)
    assert react(world) == [drop(b, Tier.DISK)]


def test_the_last_copy_on_disk_stays():
    world = two_nodes()
    a = world.artifact("a", "n1", tier=Tier.DISK)
    press(world, a, tier=Tier.DISK)
    assert react(world) == []


def test_a_lease_taken_while_it_was_written_keeps_the_copy_in_dram():
    world = two_nodes()
    a = world.artifact("a", "n1")
    world.start(world.issue("op-1", "n1", Persist(artifact=a), policy="evict"))
    world.lease(a)
    world.ready(a, "n1", Tier.DISK)
    assert react(world) == []


def test_a_persist_for_another_reason_evicts_nothing():
    world = two_nodes()
    a = world.artifact("a", "n1")
    world.start(world.issue("op-1", "n1", Persist(artifact=a), policy="replicate"))
    world.ready(a, "n1", Tier.DISK)
    assert react(world) == []


def test_what_is_leaving_already_is_counted():
    world = two_nodes()
    a, b = (world.artifact(name, "n1", "n2") for name in "ab")
    work = EvictWork(artifact=a, tier=Tier.DRAM)
    world.issue("op-1", "n1", work, policy="evict")
    press(world, a, b, needed=4 * MIB)
    assert react(world) == []


def test_candidates_of_another_node_are_not_touched():
    world = two_nodes()
    a = world.artifact("a", "n1", "n2")
    world.then(
        NodePressured(
            node=NodeId("n1"),
            epoch=Epoch(1),
            tier=Tier.DRAM,
            needed_bytes=MIB,
            candidates=(world.replica(a, "n2"), world.replica(a, "n9")),
        )
    )
    assert react(world) == []


def test_what_is_removed_goes_everywhere_and_is_no_longer_made():
    world = two_nodes()
    world.node("n3")
    a = world.artifact("a", "n1")
    world.ready(a, "n1", Tier.DISK)
    world.filling(a, "n2")
    operation = world.issue("op-1", "n2", Materialize(artifact=a))
    world.then(ArtifactRemoved(artifact=a))
    assert react(world) == [
        ("cancel", operation),
        drop(a, Tier.DISK, REMOVED),
        drop(a, Tier.DRAM, REMOVED),
        drop(a, Tier.DRAM, REMOVED, "n2"),
    ]


@pytest.mark.parametrize("end", ["released", "expired"])
def test_what_is_removed_and_leased_goes_when_the_lease_ends(end):
    world = two_nodes()
    a = world.artifact("a", "n1", "n2")
    world.lease(a, "n1")
    world.then(ArtifactRemoved(artifact=a))
    assert react(world) == [drop(a, reason=REMOVED, node="n2")]
    world.issue("op-1", "n2", EvictWork(artifact=a, tier=Tier.DRAM), policy="evict")
    event = (
        LeaseReleased(lease=LeaseId("l1"))
        if end == "released"
        else LeaseExpired(lease=LeaseId("l1"), last_seen=world.last.at)
    )
    world.then(event)
    assert react(world) == [drop(a, reason=REMOVED)]


def test_the_end_of_a_lease_on_what_is_not_removed_changes_nothing():
    world = two_nodes()
    a = world.artifact("a", "n1", "n2")
    world.lease(a)
    world.then(LeaseReleased(lease=LeaseId("l1")))
    assert react(world) == []


def test_what_was_removed_while_a_node_was_away_goes_when_it_joins():
    world = two_nodes()
    a = world.artifact("a", "n2")
    world.then(NodeLeft(node=NodeId("n2"), epoch=Epoch(1)))
    world.then(ArtifactRemoved(artifact=a))
    assert react(world) == []
    world.node("n2", epoch=2)
    assert react(world) == [drop(a, reason=REMOVED, node="n2")]


@pytest.mark.parametrize("appear", [World.ready, World.filling])
def test_a_replica_that_came_late_goes_too(appear):
    world = two_nodes()
    a = world.artifact("a", "n1")
    world.issue("op-1", "n1", EvictWork(artifact=a, tier=Tier.DRAM), policy="evict")
    world.then(ArtifactRemoved(artifact=a))
    appear(world, a, "n2")
    assert react(world) == [drop(a, reason=REMOVED, node="n2")]
