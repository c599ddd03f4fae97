"""The log of a real cluster, decided anew: with its own policies exactly as it was decided."""

from __future__ import annotations

import msgspec
import pytest
import torch

import tensorcast as tc
from stack import running_stack
from tensorcast.cli.backtests import Request, read_answer, run
from tensorcast.cli.session import Options, Session, World
from tensorcast.controlplane.core.catalog import CATALOG
from tensorcast.controlplane.simulator.backtest import review
from tensorcast.controlplane.simulator.log_file import read_events
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.errors import Corrupt, TensorCastError
from tensorcast.schema.ids import is_plan_id


@pytest.fixture
def stack(postgres_url):
    with running_stack(postgres_url) as stack:
        for node in ("n1", "n2", "n3"):
            stack.start_mover(node)
        stack.start_controlplane()
        yield stack


def live(client: tc.Client, other: tc.Client) -> None:
    """An artifact that is requested, read elsewhere, kept to the last version, and removed."""
    client.api.enable_policy("keep-last", {"versions": 1})
    for version in (1, 2, 3):
        client.put({"w": torch.full((1 << 18,), float(version))}, key=f"m@{version}")
        client.replicate(f"m@{version}", to=["n2"]).wait(timeout=60)
    client.replicate("m@3", to="all").wait(timeout=60)
    client.put({"v": torch.ones(1 << 18)}, key="x")
    assert other.get("x", timeout=60)["v"].sum() == 1 << 18
    plan = tc.Plan("hand on", deadline=60)
    pulled = plan.operation("pull", artifact="x", node="n2")
    rest = plan.wait_time("rest", 0.2, after=[pulled])
    plan.emit("say", "went", {"to": pulled["node"]}, after=[rest])
    heard = plan.wait_signal("heard", "went")
    plan.move_key("name", "live", pulled["artifact"], after=[heard])
    client.apply(plan).wait(60)
    client.api.disable_policy("keep-last")
    client.api.drain("n2")
    client.api.uncordon("n2")


def test_the_recorded_run_with_its_own_policies(stack, tmp_path):
    path = tmp_path / "log.ndjson"
    with stack.connect("n1") as client, stack.connect("n3") as other:
        live(client, other)
        client.export_log(path)
    events = tuple(read_events(path))
    found = review(ClusterView(), events, CATALOG)
    assert found.is_exact, (found, [one for one in events if one.seq in found.strange])
    written = {one.actor for one in events if one.actor.startswith("policy:")}
    assert {"policy:replicate", "policy:keep-last", "policy:evict"} <= written
    assert found.plan_events == sum(is_plan_id(one.actor) for one in events) > 8
    session = Session(World(), Options())
    request = Request(policy="spread", parameters={"readers": 1}, first=None, last=None)
    compared = run(session, request, path)
    assert compared.review.carried_out == found.carried_out
    assert compared.recorded.needs == 1
    plans = (compared.recorded.plans, compared.as_it_was.plans, compared.instead.plans)
    assert plans == (1, 1, 1)
    assert compared.instead.operations > compared.as_it_was.operations


def test_what_the_process_tells_instead_of_an_answer():
    error = {"error": {"code": "corrupt", "message": "It is cut off.", "hint": "Again."}}
    with pytest.raises(Corrupt, match="cut off"):
        read_answer(msgspec.json.encode(error), b"")
    with pytest.raises(TensorCastError, match="boom"):
        read_answer(b"", b"Traceback\nboom\n")
