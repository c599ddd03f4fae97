from samples import N1, N2, artifact_id, event_id
from tensorcast.controlplane.core.policies.base import issue
from tensorcast.schema.ids import derive_operation_id
from tensorcast.schema.work import Load, Persist

CAUSE = event_id(7)
TASKS = ((N1, Load(artifact=artifact_id("a"))), (N2, Persist(artifact=artifact_id("a"))))


def test_each_task_becomes_one_operation_in_order():
    one, other = issue("repair", CAUSE, TASKS)
    assert (one.node, one.work, one.policy) == (*TASKS[0], "repair")
    assert (other.node, other.work, other.policy) == (*TASKS[1], "repair")


def test_the_same_decision_has_the_same_ids():
    ids = [command.operation for command in issue("repair", CAUSE, TASKS)]
    assert ids == [command.operation for command in issue("repair", CAUSE, TASKS)]
    assert ids == [derive_operation_id(CAUSE, "repair", ordinal) for ordinal in range(2)]


def test_another_policy_and_another_cause_have_other_ids():
    ids = {
        command.operation
        for policy in ("repair", "evict")
        for cause in (CAUSE, event_id(8))
        for command in issue(policy, cause, TASKS)
    }
    assert len(ids) == 8


def test_nothing_to_do_is_no_operation():
    assert issue("repair", CAUSE, ()) == ()
