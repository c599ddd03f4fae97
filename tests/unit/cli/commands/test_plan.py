from __future__ import annotations

import pytest

from cli_samples import Answers, FakeClient, Tcctl
from samples import BEGIN
from tensorcast.schema.api_faults import FaultInfo
from tensorcast.schema.api_plans import ForecastInfo, ForecastStep, PlanInfo, StepInfo
from tensorcast.schema.errors import Unavailable
from tensorcast.schema.plans import EmitStep, PlanSpec

PLAN = "plan-0123456789abcdef01234567"
TEXT = """
name: little
inputs: {n: {type: integer}, to: {type: nodes, default: [n1]}, v: {type: text, default: x}}
steps: [{kind: emit, id: say, topic: t, data: {n: "${input.n}"}}]
"""
SPEC = PlanSpec(name="little", steps=(EmitStep(id="say", topic="t"),))
FIELDS = {"id", "name", "state", "steps"}
GONE = FaultInfo(kind="unavailable", detail="Gone.", retryable=True)


def plan(state: str = "running", **changes: object) -> PlanInfo:
    step = StepInfo(id="say", kind="emit", status=state, attempt=1)
    known = {
        "id": PLAN,
        "name": "little",
        "state": state,
        "actor": "user:ada@desk",
        "steps": (step,),
        "submitted_at": BEGIN,
        "seq": 7,
        "spec": SPEC,
    }
    return PlanInfo(**(known | changes))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(TEXT)
    return str(path)


def test_show_has_the_fields_of_the_interface(tcctl: Tcctl) -> None:
    tcctl.answer(plan=plan())
    data = tcctl("plan", "show", "little", "-o", "json").data
    assert set(data) >= FIELDS
    assert set(data["steps"][0]) >= {"id", "kind", "status", "attempt", "outputs"}
    assert "say" in tcctl("plan", "show", "little").out


def test_validate_tells_all_faults_and_fails(tcctl: Tcctl, file: str, tmp_path) -> None:
    api = tcctl.answer(check_plan=("Step say: no.",))
    run = tcctl("plan", "validate", file, "--input", "n=3", "--input", "to=n1,n2")
    assert run.code == 1
    assert "Step say: no." in run.out
    assert api.calls[0][1][1] == {"n": 3, "to": ["n1", "n2"]}
    run = tcctl("plan", "validate", file, "--offline", "-o", "json")
    assert run.data == {"ok": True, "faults": []}
    tcctl.answer(check_plan=Unavailable("The control plane is not running.", hint="Start it."))
    run = tcctl("plan", "validate", file)
    assert (run.code, run.out) == (0, "The plan makes sense.\n")
    assert "Only the plan itself was looked at, not the cluster: The control plane" in run.err
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("name: x\nsteps: [{kind: emit, id: a}]")
    assert "Step a: object missing required field" in tcctl("plan", "validate", str(wrong)).out
    assert tcctl("plan", "validate", str(tmp_path / "none")).code == 3
    assert tcctl("plan", "validate", file, "--input", "n").code == 2


def test_explain_shows_what_would_be(tcctl: Tcctl, file: str) -> None:
    step = ForecastStep(
        id="say", kind="fill", status="succeeded", nodes=("n2",), bytes=1 << 20, ends_s=0.5
    )
    told = ForecastInfo(name="little", state="succeeded", steps=(step,), bytes=1 << 20, seconds=0.5)
    tcctl.answer(explain_plan=told)
    out = tcctl("plan", "explain", file, "--input", "n=3").out
    assert "1.0 MiB" in out
    assert "500 ms" in out
    assert tcctl("plan", "explain", file, "-o", "json").data["seconds"] == 0.5


def applied(info: PlanInfo) -> FakeClient:
    handle = Answers(settle=info)
    handle.info = info
    return FakeClient(Answers(), apply=handle)


def test_apply_returns_at_once_or_waits(tcctl: Tcctl, file: str) -> None:
    tcctl.client = applied(plan())
    assert tcctl("plan", "apply", file, "--input", "n=3", "-q").out == f"{PLAN}\n"
    tcctl.client = applied(plan("succeeded"))
    assert tcctl("plan", "apply", file, "--wait").code == 0
    tcctl.client = applied(plan("failed", fault=GONE, failed_step="say"))
    run = tcctl("plan", "apply", file, "--wait")
    assert run.code == 1
    assert "failed at step say: Gone." in run.err


def test_ls(tcctl: Tcctl) -> None:
    api = tcctl.answer(plans=(plan("failed", fault=GONE, failed_step="say"),))
    out = tcctl("plan", "ls", "--status", "failed").out
    assert "say: Gone." in out
    assert api.calls[0][2] == {"status": "failed", "limit": 1000}


def test_watch_prints_what_is_new_and_ends_with_the_plan(tcctl: Tcctl) -> None:
    tcctl.answer(plan=plan(), wait_plan=plan("succeeded"))
    run = tcctl("plan", "watch", "little", "-q")
    assert (run.code, run.out) == (0, "say running\nsay succeeded\n\n")
    tcctl.answer(plan=plan("failed", fault=GONE, failed_step="say"))
    assert tcctl("plan", "watch", "little").code == 1


@pytest.mark.parametrize("verb", ["cancel", "pause", "resume"])
def test_what_users_may_do(tcctl: Tcctl, verb: str) -> None:
    api = tcctl.answer(**{f"{verb}_plan": None, "plan": plan()})
    assert tcctl("plan", verb, "little").code == 0
    assert api.calls[0][1] == ("little",)


def test_pictures_of_files_and_of_what_runs(tcctl: Tcctl, file: str, tmp_path) -> None:
    assert tcctl("plan", "graph", file).out == "[ ] say: emit t\n"
    tcctl.answer(plan=plan("succeeded"))
    assert tcctl("plan", "graph", "little").out == "[+] say: emit t\n"
    out = tmp_path / "plan.mmd"
    assert tcctl("plan", "graph", file, "--format", "mermaid", "--out", str(out)).code == 0
    assert out.read_text().startswith("flowchart TD")
    assert tcctl("plan", "graph", file, "--format", "dot", "-o", "json").data["format"] == "dot"
