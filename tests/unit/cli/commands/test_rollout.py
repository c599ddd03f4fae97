from __future__ import annotations

import pytest

from cli_samples import Answers, FakeClient, Tcctl
from samples import BEGIN
from tensorcast.cli.commands.rollout import parse_check
from tensorcast.cli.exits import Usage
from tensorcast.schema.api_faults import FaultInfo
from tensorcast.schema.api_plans import PlanInfo, StepInfo
from tensorcast.schema.errors import Conflict
from tensorcast.schema.plans import Check
from tensorcast.schema.rollouts import AllAtOnce, Canary, Health, Rolling, RolloutLimits

PLAN = "plan-0123456789abcdef01234567"
BAD = FaultInfo(kind="unavailable", detail="Engine e1 is lost.", retryable=False)


def rollout(state: str = "running", **changes: object) -> PlanInfo:
    known = {
        "id": PLAN,
        "name": "policy@7 roll-out",
        "state": state,
        "actor": "user:ada@desk",
        "steps": (StepInfo(id="stage", kind="map", status="succeeded"),),
        "labels": {"rollout": "policy", "version": "policy@7", "previous": "policy@6"},
        "submitted_at": BEGIN,
        "seq": 7,
    }
    return PlanInfo(**(known | changes))


def begun(tcctl: Tcctl, state: str = "running", **changes: object) -> FakeClient:
    handle = Answers(settle=None)
    handle.info = rollout(state, **changes)
    handle.name = handle.info.name
    tcctl.client = FakeClient(Answers(plan=handle.info), roll_out=handle, undo_roll_out=handle)
    return tcctl.client


def test_start_says_who_changes_when(tcctl: Tcctl) -> None:
    client = begun(tcctl)
    out = tcctl("rollout", "start", "policy@7").out
    assert "The roll-out of policy is begun: plan-0123456789ab." in out
    (call,) = client.calls
    assert call[1] == ("policy@7",)
    assert call[2] == {
        "parts": None,
        "engines": None,
        "strategy": AllAtOnce(),
        "limits": RolloutLimits(),
    }
    canary = ("--strategy", "canary", "--canaries", "2", "--soak", "5s", "--at-once", "3")
    health = ("--health", "load.*", "--check", "ttft_s<=0.5", "--engines", "e1,e2,e3")
    assert tcctl("rollout", "start", "policy@7", *canary, *health, "--no-check-bytes").code == 0
    checks = (Check(field="ttft_s", op="le", value=0.5),)
    asked = client.calls[-1][2]
    assert asked["strategy"] == Canary(
        count=2, soak_s=5, at_once=3, health=(Health(topic="load.*", checks=checks),)
    )
    assert (asked["engines"], asked["limits"].check) == (["e1", "e2", "e3"], False)
    parts = ("--part", "policy.rank0=a@7", "--part", "policy.rank1=b@7", "--strategy", "rolling")
    assert tcctl("rollout", "start", "policy@7", *parts, "-o", "json").data["id"] == PLAN
    asked = client.calls[-1][2]
    assert asked["parts"] == {"policy.rank0": "a@7", "policy.rank1": "b@7"}
    assert asked["strategy"] == Rolling(at_once=1)


def test_one_that_fails_says_why(tcctl: Tcctl) -> None:
    begun(tcctl, "failed", fault=BAD, failed_step="switch")
    run = tcctl("rollout", "start", "policy@7", "--wait")
    assert run.code == 1
    assert "Engine e1 is lost." in run.err
    tcctl.client = FakeClient(roll_out=Conflict("A roll-out of policy is under way: policy@6."))
    assert tcctl("rollout", "start", "policy@7").code == 4


def test_ls_show_and_undo(tcctl: Tcctl) -> None:
    client = begun(tcctl)
    tcctl.client = FakeClient(
        client.api, roll_outs=(rollout(),), undo_roll_out=lambda *_, **__: done
    )
    done = Answers(settle=None)
    done.info, done.name = rollout("succeeded"), "policy@6 roll-out"
    assert "policy@7 roll-out" in tcctl("rollout", "ls").out
    assert tcctl("rollout", "show", "policy", "-o", "json").data["labels"]["version"] == "policy@7"
    assert tcctl("rollout", "undo", "policy", "--wait").code == 0
    assert tcctl.client.calls[-1] == ("undo_roll_out", ("policy",), {"strategy": AllAtOnce()})
    tcctl.client = FakeClient(roll_outs=())
    assert tcctl("rollout", "show", "policy").code == 3


@pytest.mark.parametrize(
    "wrong",
    [
        ("start", "policy@7", "--check", "x<=1"),
        ("start", "policy@7", "--health", "t", "--check", "x"),
        ("start", "policy@7", "--part", "x"),
        ("undo", "policy", "--strategy", "canary"),
    ],
)
def test_wrong_usage(tcctl: Tcctl, wrong: tuple[str, ...]) -> None:
    assert tcctl("rollout", *wrong).code == 2


def test_checks() -> None:
    assert parse_check("loss.mean<2") == Check(field="loss.mean", op="lt", value=2.0)
    assert parse_check("state=ok") == Check(field="state", op="eq", value="ok")
    assert parse_check("ttft_s?<=1") == Check(field="ttft_s", op="le", value=1.0, optional=True)


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "NaN"])
def test_nothing_is_compared_with_no_number(number: str) -> None:
    with pytest.raises(Usage, match="Nothing can be compared"):
        parse_check(f"loss<={number}")
