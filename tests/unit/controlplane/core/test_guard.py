import pytest

from samples import artifact_id, record
from tensorcast.controlplane.core.guard import Guard, Limits, stop
from tensorcast.schema.commands import (
    EmitSignal,
    IssueOperation,
    JoinNode,
    LoseNode,
    PinArtifact,
    StopPolicy,
)
from tensorcast.schema.events import SignalEmitted
from tensorcast.schema.ids import Epoch, NodeId, OperationId
from tensorcast.schema.policy_events import PolicyEnabled
from tensorcast.schema.work import Materialize

SAID = SignalEmitted(topic="a")
PIN = PinArtifact(artifact=artifact_id("a"))
FEW = Limits(event_commands_max=2, minute_commands_max=5)


def issue(policy: str) -> IssueOperation:
    work = Materialize(artifact=artifact_id("a"))
    return IssueOperation(
        operation=OperationId("op-1"), node=NodeId("n1"), work=work, policy=policy
    )


@pytest.mark.parametrize(
    ("commands", "reason"),
    [
        ((), None),
        ((PIN, EmitSignal(topic="a")), None),
        ((issue("mine"),), None),
        ((issue("evict"),), "forbidden"),
        ((LoseNode(node=NodeId("n1"), epoch=Epoch(1), silent_s=1.0),), "forbidden"),
        ((StopPolicy(policy="evict", reason="r", detail="d"),), "forbidden"),
        (("no command",), "forbidden"),
        ((PIN, PIN, PIN), "flood"),
    ],
)
def test_one_answer(commands, reason):
    verdict = Guard().judge("mine", FEW, commands, record(SAID))
    assert (verdict and verdict.reason) == reason


def test_many_answers_within_a_minute_are_a_flood_and_later_they_are_none():
    guard = Guard()
    for seq in range(1, 5):
        guard.note(record(SAID, seq, actor="policy:mine"))
        guard.note(record(SAID, seq, actor="policy:other"))
        guard.note(record(SAID, seq))
    assert guard.judge("mine", FEW, (PIN,), record(SAID, 5)) is None
    flood = guard.judge("mine", FEW, (PIN, PIN), record(SAID, 5))
    assert (flood.reason, flood.policy) == ("flood", "mine")
    assert "6 commands in a minute" in flood.detail
    assert guard.judge("mine", FEW, (PIN, PIN), record(SAID, 70)) is None


def test_a_policy_that_is_turned_on_begins_a_new_minute():
    guard = Guard()
    for seq in range(1, 6):
        guard.note(record(SAID, seq, actor="policy:mine"))
        guard.note(record(SAID, seq, actor="policy:other"))
    assert guard.judge("mine", FEW, (PIN,), record(SAID, 6)).reason == "flood"
    guard.note(record(PolicyEnabled(policy="mine"), 6))
    assert guard.count("mine", record(SAID, 7)) == 0
    assert guard.judge("mine", FEW, (PIN,), record(SAID, 7)) is None
    assert guard.judge("other", FEW, (PIN,), record(SAID, 7)).reason == "flood"
    guard.note(record(SAID, 7, actor="policy:mine"))
    assert guard.count("mine", record(SAID, 8)) == 1


def test_a_guard_that_is_made_anew_counts_the_same():
    log = [record(SAID, seq, actor="policy:mine") for seq in range(1, 100)]
    one, other = Guard(), Guard()
    for recorded in log:
        one.note(recorded)
        one.judge("mine", FEW, (PIN,), recorded)
    for recorded in log:
        other.note(recorded)
    assert one.count("mine", log[-1]) == other.count("mine", log[-1]) == 60


def test_what_is_said_about_the_end_fits():
    assert len(stop("mine", "raised", "x" * 10_000).detail) == 500


def test_joining_is_for_movers():
    joins = JoinNode(node=NodeId("n"), epoch=Epoch(1), address="a:1", tiers={}, transports=())
    assert Guard().judge("mine", Limits(), (joins,), record(SAID)).reason == "forbidden"
