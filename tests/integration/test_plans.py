"""Plans on a whole cluster: by `tcctl`, by the SDK, with a mover that dies on the way. A minute:
`scripts/test failover tests/integration/test_plans.py`."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import tensorcast as tc
from cluster import running_cluster
from tensorcast.client.context import resolve_context

pytestmark = [pytest.mark.failover, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "09_plans.py"
FILE = ROOT / "examples" / "plan.yaml"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with running_cluster(tmp_path_factory.mktemp("plans"), 2) as running:
        yield running


@pytest.fixture(scope="module")
def client(cluster):
    context = resolve_context(None, "n1", cluster.env)
    with tc.connect(context) as client:
        yield client


def put(client, key: str, mib: int = 8):
    return client.put({"w": torch.full((mib << 18,), float(len(key)))}, key=key)


def test_a_plan_in_a_file_from_validate_to_replay(cluster, client):
    put(client, "m@1")
    given = ("--input", "key=m@1")
    assert cluster.ask("plan", "validate", str(FILE), *given) == {"ok": True, "faults": []}
    wrong = cluster.tcctl("plan", "validate", str(FILE), "--input", "key=nobody", code=1)
    assert "no key and no artifact 'nobody'" in wrong.out
    told = cluster.ask("plan", "explain", str(FILE), *given)
    assert (told["state"], told["bytes"]) == ("succeeded", 8 << 20)
    done = cluster.ask("plan", "apply", str(FILE), *given, "--wait", "--dedup-id", "once")
    assert (done["state"], done["outputs"]) == ("succeeded", {"moved": 8 << 20})
    again = cluster.ask("plan", "apply", str(FILE), *given, "--wait", "--dedup-id", "once")
    assert again["id"] == done["id"]
    assert [one["id"] for one in cluster.ask("plan", "ls")] == [done["id"]]
    shown = cluster.ask("plan", "show", "warm all nodes")
    assert {step["status"] for step in shown["steps"]} == {"succeeded"}
    assert "[+] fan: replicate" in cluster.tcctl("plan", "graph", done["id"]).out
    assert "flowchart" in cluster.tcctl("plan", "graph", str(FILE), "--format", "mermaid").out
    watched = cluster.tcctl("plan", "watch", done["id"], "-o", "ndjson").out.splitlines()
    assert json.loads(watched[-1])["state"] == "succeeded"
    events = cluster.tcctl("audit", "log", "--plan", done["id"], "-o", "ndjson").out.splitlines()
    types = [json.loads(line)["type"] for line in events]
    assert (types[0], types[-1]) == ("plan.submitted", "plan.succeeded")
    assert {"operation.issued", "operation.succeeded", "signal.emitted"} <= set(types)
    seq = json.loads(events[-2])["seq"]
    past = cluster.ask("replay", "--to", str(seq), "plan", done["id"])
    assert past["plans"][0]["state"] == "running"
    assert cluster.ask("diff", "--from", str(seq), "plan", done["id"])["total"] == 1


def test_a_plan_is_paused_resumed_and_cancelled(cluster, client):
    plan = tc.Plan("waits")
    heard = plan.wait_signal("heard", "go")
    plan.emit("said", "went", {"by": heard["actor"]})
    run = client.apply(plan)
    run.pause("lunch")
    client.emit("go")
    deadline = time.monotonic() + 30
    while run.refresh().steps[0].status != "succeeded":
        assert time.monotonic() < deadline
    assert [step.status for step in run.info.steps] == ["succeeded", "pending"]
    run.resume()
    assert run.wait(30).status == "succeeded"
    assert cluster.tcctl("plan", "cancel", run.id, code=4).code == 4

    run = client.apply(plan)
    run.cancel("enough")
    with pytest.raises(tc.Cancelled, match="enough"):
        run.wait(30)


def test_a_plan_that_fails_says_where_and_why(client):
    plan = tc.Plan("fails")
    plan.operation("pull", artifact="nobody", node="n2")
    with pytest.raises(tc.NotFound, match=r"failed at step pull: .*'nobody'"):
        client.apply(plan).wait(30)


async def test_the_same_awaitable(cluster):
    context = resolve_context(None, "n1", cluster.env)
    async with tc.connect_async(context) as client:
        plan = tc.Plan("async")
        plan.emit("say", "hello")
        run = await client.apply(plan)
        assert (await run.wait(30)).status == "succeeded"
        assert next(one.type for one in await run.events()) == "plan.submitted"


def test_the_listing_with_a_mover_that_dies_on_the_way(cluster, client):
    """List instances, choose, publish on A, prefetch on B with the outcome of the first step,
    hydrate B: in one plan over two nodes, and B's mover is killed once."""
    found = importlib.util.spec_from_file_location("example", EXAMPLE)
    example = importlib.util.module_from_spec(found)
    found.loader.exec_module(example)
    command = [sys.executable, str(EXAMPLE)]
    processes = []
    try:
        for name, node in zip(example.NAMES, ("n1", "n2"), strict=True):
            process = subprocess.Popen(
                [*command, name, node], env=dict(cluster.env), stdout=subprocess.PIPE, text=True
            )
            processes.append(process)
            assert process.stdout.readline() == "ready\n"
        run = client.apply(example.make_plan(*example.NAMES, "n2"))
        deadline = time.monotonic() + 60
        while run.refresh().steps[0].status != "succeeded":
            assert time.monotonic() < deadline
        cluster.kill("n2")
        run.wait(200)
    finally:
        for process in processes:
            process.kill()
            process.wait()
            process.stdout.close()
    assert run.outputs["tokens"] == example.TOKENS
    assert {step.status for step in run.info.steps} == {"succeeded"}
    moved = [one for one in client.api.operations() if one.policy == run.id]
    assert [one.status for one in moved].count("succeeded") == 1
