"""The log of a cluster whose control plane is killed again and again, decided anew: every step of
its plans and all answers of its policies exactly as they were decided. A minute:
`scripts/test failover tests/integration/test_failover_backtest.py`."""

from __future__ import annotations

import itertools
import threading
import time

import pytest
import torch

import tensorcast as tc
from stack import running_stack
from tensorcast.controlplane.core.catalog import CATALOG
from tensorcast.controlplane.simulator.backtest import review
from tensorcast.controlplane.simulator.log_file import read_events
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.errors import TensorCastError
from tensorcast.schema.ids import is_plan_id

pytestmark = [pytest.mark.failover, pytest.mark.timeout(300)]
NODES = ("n1", "n2", "n3")
DEATHS = 3
AT_ONCE = 6
LIFE_S = 4.0
NAMES = tuple(f"w{number}" for number in range(5))


@pytest.fixture
def stack(postgres_url):
    with running_stack(postgres_url) as stack:
        for node in NODES:
            stack.start_mover(node)
        stack.start_controlplane()
        yield stack


def write_plan(number: int) -> tc.Plan:
    """Fan-out, calls that are refused at first, waits for signals and times, a map, a failure that
    is undone."""
    artifact = NAMES[number % len(NAMES)]
    plan = tc.Plan(f"p{number}", deadline=120)
    again = tc.Retry(attempts=5, backoff_s=0.2)
    pulled = plan.operation("pull", artifact=artifact, node="n2", timeout=30)
    fan = plan.replicate("fan", artifact=pulled["artifact"], to=["n3", "n2"])
    asked = plan.call(
        "ask",
        engine="echo",
        verb="say",
        arguments={"n": number},
        timeout=30,
        returns={"n": "integer"},
        retry=again,
    )
    rest = plan.wait_time("rest", 0.3, after=[fan])
    each = plan.map("each", items=[1, 2, 3], at_once=2, after=[rest, asked])
    said = each.emit("say", f"said.{number}", {"i": "${item}"})
    each.wait_time("pause", 0.05, after=[said])
    heard = plan.wait_signal("heard", f"said.{number}", count=3)
    late = plan.wait_signal("never", "nobody.says.it", timeout=0.7, on_failure="continue")
    drop = plan.operation("drop", artifact=artifact, node="n3", work="evict", after=[heard, late])
    plan.move_key("name", f"live{number}", pulled["artifact"], after=[drop])
    return plan


class Program:
    """Answers calls; every other one at first with a fault."""

    def __init__(self, client: tc.Client, ends: threading.Event) -> None:
        self._calls, self._ends = client.calls("echo"), ends
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def _serve(self) -> None:
        refused = set()
        while not self._ends.is_set():
            call = self._calls.next(0.2)
            if call is None:
                continue
            try:
                if call.id.endswith("#1") and call.id not in refused:
                    refused.add(call.id)
                    call.fail("not now", kind="unavailable")
                else:
                    call.answer({"n": call.arguments["n"]})
            except TensorCastError:
                continue  # it comes again


def apply_all(client: tc.Client, ends: threading.Event, runs: list[tc.PlanRun]) -> None:
    """So many plans at a time, whoever is killed."""
    numbers = itertools.count()
    client.api.enable_policy("keep-last", {"versions": 2})
    while not ends.is_set():
        under_way = [run for run in runs[-AT_ONCE:] if run.status not in ("succeeded", "failed")]
        try:
            for run in under_way:
                run.refresh()
            if len(under_way) < AT_ONCE:
                number = next(numbers)
                runs.append(client.apply(write_plan(number), dedup_id=f"p{number}"))
                client.put({"w": torch.full((1 << 16,), float(number))}, key=f"v@{number + 1}")
                client.replicate(f"v@{number + 1}", to="all")
        except TensorCastError:
            time.sleep(0.2)


def test_what_was_decided_across_deaths_is_decided_again(stack, tmp_path):
    path, ends, runs = tmp_path / "log.ndjson", threading.Event(), []
    with stack.connect() as client, stack.connect() as other:
        for number, name in enumerate(NAMES):
            client.put({"w": torch.full((1 << 18,), float(number))}, key=name)
        program = Program(other, ends)
        user = threading.Thread(target=apply_all, args=(client, ends, runs))
        user.start()
        try:
            for _ in range(DEATHS):
                time.sleep(LIFE_S)
                stack.kill("controlplane")
                stack.start_controlplane()
            time.sleep(LIFE_S)
        finally:
            ends.set()
            user.join()
            program.join()
        client.export_log(path)
    events = tuple(read_events(path))
    found = review(ClusterView(), events, CATALOG)
    by_seq = {one.seq: one for one in events}
    odd = [(seq, by_seq[seq].actor, by_seq[seq].event) for seq in found.plan_strange]
    assert found.plan_events == sum(is_plan_id(one.actor) for one in events) > 100
    written = {one.actor for one in events if one.actor.startswith("policy:")}
    assert {"policy:replicate", "policy:keep-last"} <= written
    assert found.is_exact, (found, odd)
