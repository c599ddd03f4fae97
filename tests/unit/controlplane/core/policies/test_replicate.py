import pytest

from samples import artifact_id
from tensorcast.controlplane.core.policies.replicate import Replicate
from tensorcast.controlplane.core.view import DRAINED, PRESSURE
from tensorcast.schema.commands import IssueOperation
from tensorcast.schema.events import (
    ArtifactRemoved,
    NodeCordoned,
    NodeLeft,
    NodeUncordoned,
    ReplicaEvicting,
    ReplicaGone,
    ReplicaLost,
)
from tensorcast.schema.faults import FaultKind
from tensorcast.schema.ids import Epoch, NodeId, Tier, derive_operation_id
from tensorcast.schema.work import Evict, Load, Materialize, Persist
from worlds import World


def react(world):
    """What the policy wants done about the last event: (node, work) of each operation."""
    commands = Replicate().react(world.view, world.last)
    assert all(isinstance(command, IssueOperation) for command in commands)
    return [(str(command.node), command.work) for command in commands]


def three_nodes():
    world = World()
    for name in ("n1", "n2", "n3", "n4"):
        world.node(name)
    return world


def test_a_request_becomes_a_chain():
    world = three_nodes()
    a = world.artifact("a", "n1")
    world.request(a, "n2", "n3", "n4")
    assert react(world) == [
        ("n2", Materialize(artifact=a, sources=(NodeId("n1"),))),
        ("n3", Materialize(artifact=a, sources=(NodeId("n2"),))),
        ("n4", Materialize(artifact=a, sources=(NodeId("n3"),))),
    ]


def test_two_holders_start_two_chains():
    world = three_nodes()
    for name in ("n5", "n6"):
        world.node(name)
    a = world.artifact("a", "n1", "n2")
    world.request(a, "n3", "n4", "n5", "n6")
    assert [(node, work.sources) for node, work in react(world)] == [
        ("n3", ("n1",)),
        ("n4", ("n2",)),
        ("n5", ("n3",)),
        ("n6", ("n4",)),
    ]


def test_all_that_have_it_serve_a_single_target():
    world = three_nodes()
    a = world.artifact("a", "n1", "n2", "n3")
    world.request(a, "n4")
    assert [(node, work.sources) for node, work in react(world)] == [("n4", ("n1", "n2", "n3"))]


def test_a_late_request_joins_the_broadcast_that_is_under_way():
    world = three_nodes()
    a = world.artifact("a", "n1")
    world.issue("op-1", "n2", Materialize(artifact=a, sources=(NodeId("n1"),)))
    world.issue("op-2", "n3", Materialize(artifact=a, sources=(NodeId("n2"),)))
    world.request(a, "n4")
    assert [(node, work.sources) for node, work in react(world)] == [("n4", ("n3",))]


def test_the_labels_that_say_where_a_node_is_can_be_chosen():
    world = World()
    for name, zone in (("n1", "a"), ("n2", "b"), ("n3", "a"), ("n4", "b")):
        world.node(name, labels={"zone": zone})
    a = world.artifact("a", "n1")
    world.request(a, "n2", "n3", "n4")
    commands = Replicate(["zone"]).react(world.view, world.last)
    sources = {str(c.node): c.work.sources for c in commands}
    assert sources == {"n3": ("n1",), "n2": ("n3",), "n4": ("n2",)}


def test_the_ids_follow_from_the_request():
    world = three_nodes()
    a = world.artifact("a", "n1")
    request = world.request(a, "n2", "n3")
    ids = [command.operation for command in Replicate().react(world.view, world.last)]
    assert ids == [derive_operation_id(request.id, "replicate", ordinal) for ordinal in (0, 1)]


def test_what_is_there_or_coming_is_not_made_again():
    world = three_nodes()
    a = world.artifact("a", "n1", "n2")
    world.issue("op-1", "n3", Materialize(artifact=a))
    world.request(a, "n1", "n2", "n3")
    assert react(world) == []


def test_a_failed_operation_with_a_retry_to_come_counts_as_coming():
    world = three_nodes()
    a = world.artifact("a", "n1")
    operation = world.issue("op-1", "n2", Materialize(artifact=a))
    world.fail(operation, FaultKind.UNAVAILABLE)
    world.request(a, "n2")
    assert react(world) == []


def test_an_operation_that_was_given_up_does_not():
    world = three_nodes()
    a = world.artifact("a", "n1")
    operation = world.issue("op-1", "n2", Materialize(artifact=a))
    world.fail(operation, FaultKind.DENIED)
    world.request(a, "n2")
    assert [node for node, _ in react(world)] == ["n2"]


def test_nothing_goes_to_a_node_that_is_away_or_cordoned():
    world = three_nodes()
    a = world.artifact("a", "n1")
    world.then(NodeLeft(node=NodeId("n2"), epoch=Epoch(1)))
    world.then(NodeCordoned(node=NodeId("n3")))
    world.request(a, "n2", "n3", "n4")
    assert [node for node, _ in react(world)] == ["n4"]


def test_its_own_disk_is_the_nearest_source():
    world = three_nodes()
    a = world.artifact("a", "n1")
    world.ready(a, "n2", Tier.DISK)
    world.request(a, "n2")
    assert react(world) == [("n2", Load(artifact=a))]


def test_disk_is_written_from_dram_or_pulled_straight_to_it():
    world = three_nodes()
    a = world.artifact("a", "n1")
    world.request(a, "n1", "n2", "n3", tier=Tier.DISK)
    assert react(world) == [
        ("n1", Persist(artifact=a)),
        ("n2", Materialize(artifact=a, sources=(NodeId("n1"),), tier=Tier.DISK)),
        ("n3", Materialize(artifact=a, sources=(NodeId("n2"),), tier=Tier.DISK)),
    ]
    world.ready(a, "n2", Tier.DISK)
    assert react(world) == []


def test_disk_is_written_from_dram_that_came_meanwhile():
    world = three_nodes()
    a = world.artifact("a", "n1")
    world.request(a, "n2", tier=Tier.DISK)
    world.ready(a, "n2")
    assert react(world) == [("n2", Persist(artifact=a))]
    world.ready(a, "n2", Tier.DISK)
    assert react(world) == []


def test_what_was_asked_for_in_both_tiers_comes_once():
    world = three_nodes()
    a = world.artifact("a", "n1")
    world.request(a, "n2", tier=Tier.DISK)
    world.request(a, "n2")
    world.node("n2", epoch=2)
    assert react(world) == [("n2", Materialize(artifact=a, sources=(NodeId("n1"),)))]


def test_disk_waits_for_dram_that_is_filling_already():
    world = three_nodes()
    a = world.artifact("a", "n1")
    world.issue("op-1", "n2", Materialize(artifact=a))
    world.request(a, "n2", tier=Tier.DISK)
    assert react(world) == []


def test_a_dram_replica_alone_is_not_persisted():
    world = three_nodes()
    a = world.artifact("a", "n1")
    world.request(a, "n2")
    world.ready(a, "n2")
    assert react(world) == []


def test_a_node_that_joins_gets_what_it_was_asked_for():
    world = three_nodes()
    a = world.artifact("a", "n1")
    world.request(a, "n2")
    world.node("n2", epoch=2)
    assert [node for node, _ in react(world)] == ["n2"]
    world.issue("op-1", "n2", Materialize(artifact=a))
    world.node("n2", epoch=3)
    assert react(world) == []


def test_a_node_that_is_uncordoned_gets_what_it_was_asked_for():
    world = three_nodes()
    a = world.artifact("a", "n1")
    world.then(NodeCordoned(node=NodeId("n2")))
    world.request(a, "n2")
    world.then(NodeUncordoned(node=NodeId("n2")))
    assert [node for node, _ in react(world)] == ["n2"]


def test_the_only_source_coming_back_wakes_requests():
    world = three_nodes()
    a = world.artifact("a", "n1")
    world.then(NodeLeft(node=NodeId("n1"), epoch=Epoch(1)))
    world.request(a, "n2")
    operation = world.issue("op-1", "n2", Materialize(artifact=a))
    world.fail(operation, FaultKind.DENIED)
    world.node("n1", epoch=2)
    assert react(world) == [("n2", Materialize(artifact=a, sources=(NodeId("n1"),)))]


def test_the_first_complete_copy_wakes_requests():
    world = three_nodes()
    a = world.artifact("a", "n1")
    world.request(a, "n2")
    world.then(
        ReplicaLost(replica=world.replica(a, "n1"), epoch=Epoch(1), detail="the memory is gone")
    )
    world.ready(a, "n3")
    assert [node for node, _ in react(world)] == ["n2"]


def test_removed_artifacts_are_left_alone():
    world = three_nodes()
    a = world.artifact("a", "n1")
    world.request(a, "n2")
    world.then(ArtifactRemoved(artifact=a))
    world.node("n2", epoch=2)
    assert react(world) == []
    world.ready(a, "n2")
    assert react(world) == []


def test_a_request_without_any_source_is_issued_and_says_why_it_fails():
    world = three_nodes()
    a = world.artifact("a")
    world.request(a, "n2")
    assert react(world) == [("n2", Materialize(artifact=a))]
    assert a == artifact_id("a")


def test_a_node_that_joins_gets_nothing_that_nobody_has():
    world = three_nodes()
    a = world.artifact("a")
    world.request(a, "n2")
    world.node("n2", epoch=2)
    assert react(world) == []


@pytest.mark.parametrize("reason", [DRAINED, PRESSURE])
def test_what_a_drain_took_comes_back_when_it_was_called_off(reason):
    world = three_nodes()
    a = world.artifact("a", "n1", "n2")
    world.request(a, "n2")
    work = Evict(artifact=a, tier=Tier.DRAM, reason=reason)
    world.start(world.issue("op-1", "n2", work, policy="drain"))
    replica = world.replica(a, "n2")
    world.then(ReplicaEvicting(replica=replica, epoch=Epoch(1), reason=reason))
    world.then(ReplicaGone(replica=replica, epoch=Epoch(1)))
    assert [node for node, _ in react(world)] == (["n2"] if reason == DRAINED else [])


def test_a_gpu_is_filled_from_dram_where_there_is_some_and_by_a_pull_else():
    world = three_nodes()
    for name in ("n5", "n6"):
        world.node(name, gpu=1 << 30)
    a = world.artifact("a", "n5")
    world.request(a, "n5", "n6", tier=Tier.GPU)
    assert react(world) == [
        ("n5", Persist(artifact=a, tier=Tier.GPU)),
        ("n6", Materialize(artifact=a, sources=(NodeId("n5"),), tier=Tier.GPU)),
    ]
