import msgspec
import pytest

from histories import Dice
from samples import record
from tensorcast.controlplane.core.decisions import POLICIES, decide_reactions, is_right
from tensorcast.controlplane.core.policies.base import issue
from tensorcast.controlplane.core.view import DRAINED
from tensorcast.schema.cluster import ClusterView, project
from tensorcast.schema.commands import CancelOperation, IssueOperation, PinArtifact, RetryOperation
from tensorcast.schema.events import (
    ArtifactPinned,
    ArtifactRemoved,
    NodeDrained,
    NodeLeft,
    NodeUncordoned,
    ReplicaEvicting,
    ReplicaLost,
)
from tensorcast.schema.faults import FaultKind
from tensorcast.schema.ids import ArtifactId, Epoch, EventId, NodeId, OperationId, Tier
from tensorcast.schema.work import Evict, Materialize, Persist, Verify
from worlds import World


def two_nodes():
    world = World()
    world.node("n1")
    world.node("n2")
    return world


def command(node, work, name="op-new"):
    return IssueOperation(
        operation=OperationId(name), node=NodeId(node), work=work, policy="replicate"
    )


def test_policies_have_names_of_their_own():
    assert len({policy.name for policy in POLICIES}) == len(POLICIES)


def test_two_policies_with_one_aim_issue_one_operation():
    world = two_nodes()
    a = world.artifact("a", "n1")
    world.request(a, "n2")
    both = decide_reactions(world.view, world.last, (*POLICIES, _Other()))
    aims = [(c.node, c.work.artifact) for decision in both for c in decision.commands]
    assert aims == [("n2", a)]
    assert [decision.policy for decision in both] == ["replicate"]


def test_a_cancellation_has_no_aim():
    world = two_nodes()
    a = world.artifact("a", "n1")
    operation = world.issue("op-1", "n2", Materialize(artifact=a))
    world.then(ArtifactRemoved(artifact=a))
    (decision,) = decide_reactions(world.view, world.last)
    assert decision.commands[0] == CancelOperation(
        operation=operation, reason="the artifact was removed"
    )
    assert len(decision.commands) == 2


def test_what_is_no_operation_is_left_to_its_aggregate():
    assert is_right(World().view, PinArtifact(artifact=ArtifactId("a")))


class _Other:
    name = "other"

    def react(self, view, recorded):
        artifact = next(iter(view.artifacts))
        return issue(self.name, recorded.id, ((NodeId("n2"), Materialize(artifact=artifact)),))


class _Ending:
    name = "ending"

    def react(self, view, recorded):
        raise SystemExit(3)


def test_a_policy_that_would_end_the_process_is_stopped():
    world = two_nodes()
    world.artifact("a", "n1")
    (decision,) = decide_reactions(world.view, world.last, (_Ending(),))
    assert decision.ends
    assert "SystemExit: 3" in decision.fault


def test_an_issue_is_right_while_nothing_has_changed():
    world = two_nodes()
    a = world.artifact("a", "n1")
    assert is_right(world.view, command("n2", Materialize(artifact=a)))


def _done(world, a):
    world.ready(a, "n2")


def _removed(world, a):
    world.then(ArtifactRemoved(artifact=a))


def _node_left(world, a):
    world.then(NodeLeft(node=NodeId("n2"), epoch=Epoch(1)))


def _issued_by_another_scheduler(world, a):
    world.issue("op-new", "n2", Materialize(artifact=a))


def _coming_anyway(world, a):
    world.issue("op-other", "n2", Materialize(artifact=a))


@pytest.mark.parametrize(
    "change", [_done, _removed, _node_left, _issued_by_another_scheduler, _coming_anyway]
)
def test_an_issue_becomes_needless(change):
    world = two_nodes()
    a = world.artifact("a", "n1")
    change(world, a)
    assert not is_right(world.view, command("n2", Materialize(artifact=a)))


def _leased(world, a):
    world.lease(a, "n1")


def _pinned(world, a):
    world.then(ArtifactPinned(artifact=a))


def _last(world, a):
    world.then(ReplicaLost(replica=world.replica(a, "n2"), epoch=Epoch(1), detail=""))


@pytest.mark.parametrize("change", [_leased, _pinned, _last])
def test_an_eviction_becomes_wrong(change):
    world = two_nodes()
    a = world.artifact("a", "n1", "n2")
    evict = command("n1", Evict(artifact=a, tier=Tier.DRAM))
    assert is_right(world.view, evict)
    change(world, a)
    assert not is_right(world.view, evict)


def test_what_is_removed_may_go_unless_it_is_leased():
    world = two_nodes()
    a = world.artifact("a", "n1")
    evict = command("n1", Evict(artifact=a, tier=Tier.DRAM))
    assert not is_right(world.view, evict), "it is the last copy"
    world.then(ArtifactRemoved(artifact=a))
    assert is_right(world.view, evict)
    world.lease(a)
    assert not is_right(world.view, evict)


def test_an_eviction_that_stopped_half_way_is_ended():
    world = two_nodes()
    a = world.artifact("a", "n1")
    world.then(ReplicaEvicting(replica=world.replica(a, "n1"), epoch=Epoch(1), reason=""))
    assert is_right(world.view, command("n1", Evict(artifact=a, tier=Tier.DRAM)))


def test_only_what_is_complete_is_checked():
    world = two_nodes()
    a = world.artifact("a", "n1")
    world.filling(a, "n2")
    assert is_right(world.view, command("n1", Verify(artifact=a, tier=Tier.DRAM)))
    assert not is_right(world.view, command("n2", Verify(artifact=a, tier=Tier.DRAM)))


def test_a_retry_is_right_until_somebody_was_faster():
    world = two_nodes()
    a = world.artifact("a", "n1")
    operation = world.issue("op-1", "n1", Persist(artifact=a))
    world.fail(operation, FaultKind.OUT_OF_CAPACITY)
    again = RetryOperation(operation=operation, attempt=2)
    assert is_right(world.view, again)
    world.ready(a, "n1", Tier.DISK)
    assert not is_right(world.view, again)


def test_only_open_operations_are_cancelled():
    world = two_nodes()
    a = world.artifact("a", "n1")
    operation = world.issue("op-1", "n2", Materialize(artifact=a))
    cancel = CancelOperation(operation=operation, reason="")
    assert is_right(world.view, cancel)
    world.succeed(operation)
    assert not is_right(world.view, cancel)
    assert not is_right(world.view, CancelOperation(operation=OperationId("op-?"), reason=""))


def test_a_decision_in_one_view_is_the_same_everywhere():
    world = two_nodes()
    a = world.artifact("a", "n1")
    world.request(a, "n2")
    first = decide_reactions(world.view, world.last)
    assert first == decide_reactions(world.view, world.last)
    assert first[0].policy == "replicate"
    assert EventId(world.last.id) == world.events[-1].id


def test_a_drain_that_was_called_off_evicts_nothing():
    world = two_nodes()
    a = world.artifact("a", "n1", "n2")
    evict = command("n1", Evict(artifact=a, tier=Tier.DRAM, reason=DRAINED))
    world.then(NodeDrained(node=NodeId("n1")))
    assert is_right(world.view, evict)
    world.then(NodeUncordoned(node=NodeId("n1")))
    assert not is_right(world.view, evict)


@pytest.mark.parametrize("seed", range(12))
def test_policies_have_an_answer_to_whatever_the_log_may_hold(seed):
    """Also to replicas and work of nodes that never joined: the log takes them, and a policy that
    breaks there would end every control plane at the same event, for ever."""
    dice, view, seq = Dice(seed), ClusterView(), 0
    while seq < 60:
        for draft in dice.drafts(view):
            seq += 1
            recorded = msgspec.structs.replace(record(draft.event, seq), id=draft.id)
            view = project(view, recorded)
            for decision in decide_reactions(view, recorded):
                for found in decision.commands:
                    is_right(view, found)
