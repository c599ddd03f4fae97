"""Roll-outs with real processes: movers, a control plane, and engines that are killed. All of it:
`scripts/test failover tests/integration/test_rollouts.py`."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import torch

import tensorcast as tc
from stack import running_stack
from tensorcast.schema.api import AuditQuery
from tensorcast.schema.errors import Conflict, NotFound

pytestmark = pytest.mark.timeout(240)
PROCESS = Path(__file__).resolve().parents[1] / "receiver_process.py"
WAIT_S = 90.0
LIMITS = tc.RolloutLimits(stage_s=60.0, switch_s=30.0)


@pytest.fixture(scope="module")
def stack(_shared_postgres):
    if _shared_postgres.pid is None:
        _shared_postgres.start()
    with running_stack(_shared_postgres.create_database()) as running:
        running.start_mover("n1")
        running.start_mover("n2")
        running.start_controlplane()
        yield running


@pytest.fixture
def client(stack):
    with stack.connect() as connected:
        yield connected


def weights(number: float):
    return {"w": torch.full((1 << 18,), number)}


@contextmanager
def engines(stack, key: str, *wanted: str):
    """Engines that serve what the key names; gives their process ids by name."""
    context = msgspec.json.encode(stack.context()).decode()
    command = [sys.executable, str(PROCESS), context, key, *wanted]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        lines = [process.stdout.readline().split() for _ in wanted]
        yield {name: int(pid) for name, pid in lines}
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def ask(client, *names: str):
    """What the engines say that they serve: version, number, and whether all of it is that."""
    plan = tc.Plan("ask")
    returns = {"version": "text", "number": "number", "whole": "boolean"}
    for name in names:
        plan.call(name, engine=name, verb="tell", returns=returns, timeout=60)
    steps = client.apply(plan).wait(WAIT_S).steps
    return {name: tuple(steps[name].outputs.values()) for name in names}


@pytest.mark.slow
def test_versions_come_in_turn_and_a_bad_one_is_undone(stack, client):
    names = ("a1", "a2", "a3")
    first = client.publish("a", weights(1))
    with engines(stack, "a", "a1@n1", "a2@n2", "a3@n2:refuse"):
        second = client.publish("a", weights(2), point=False)
        assert (second, client.api.artifact("a").keys) == ("a@2", ("a", first))
        client.roll_out(second, strategy=tc.Rolling(at_once=2), limits=LIMITS).wait(WAIT_S)
        assert ask(client, *names) == dict.fromkeys(names, ("a@2", 2.0, True))
        assert set(client.api.artifact("a").keys) == {"a", second}

        # The health of the canary is what the engine itself says of the weights that it has.
        third = client.publish("a", weights(99), point=False)
        health = tc.Health(
            topic="weights.health",
            where={"engine": "a1"},
            checks=(tc.Check(field="number", op="lt", value=50),),
        )
        run = client.roll_out(
            third,
            engines=names,
            strategy=tc.Canary(count=1, soak_s=600, health=(health,)),
            limits=LIMITS,
        )
        run.settle(WAIT_S)
        assert run.status == "failed"
        assert "says number 99.0; it must be less than 50" in run.info.fault.detail
        assert ask(client, *names) == dict.fromkeys(names, ("a@2", 2.0, True))
        failed = next(one for one in run.events() if one.type == "plan.step_failed")
        (told,) = [
            one
            for one in client.api.audit(AuditQuery(types=("signal.emitted",), newest=True))
            if one.id == failed.cause
        ]
        assert told.fields["topic"] == "weights.health"
        assert [one.version for one in client.engine("a1").served][-3:] == [second, third, second]
        assert [one.version for one in client.engine("a2").served] == [first, second]

        # One that takes them and then cannot change to them.
        fourth = client.publish("a", weights(5000), point=False)
        assert fourth == "a@4"
        run = client.roll_out(fourth, limits=LIMITS)
        run.settle(WAIT_S)
        assert "too large for me" in run.info.fault.detail
        assert ask(client, *names) == dict.fromkeys(names, ("a@2", 2.0, True))

        with pytest.raises(NotFound, match="nothing to undo"):
            client.undo_roll_out("a", limits=LIMITS)
        assert ask(client, *names) == dict.fromkeys(names, ("a@2", 2.0, True))
        with pytest.raises(NotFound):
            client.undo_roll_out("nobody")


@pytest.mark.failover
def test_engines_and_the_control_plane_are_killed_on_the_way(stack, client):
    client.publish("b", weights(1))
    with engines(stack, "b", "b1@n1", "b2@n2:die-at-switch"):
        second = client.publish("b", weights(2), point=False)
        run = client.roll_out(second, limits=LIMITS)
        with pytest.raises(Conflict, match="is under way"):
            client.roll_out(second)
        stack.kill("controlplane")
        stack.start_controlplane()
        run.settle(WAIT_S)
        assert run.status == "failed"
        assert "b2" in run.info.fault.detail
        assert ask(client, "b1") == {"b1": ("b@1", 1.0, True)}
        with engines(stack, "b", "b2@n2"):  # it comes back, with what the key names
            assert ask(client, "b2") == {"b2": ("b@1", 1.0, True)}
            client.roll_out(second, limits=LIMITS).wait(WAIT_S)
            served = ("b@2", 2.0, True)
            assert ask(client, "b1", "b2") == {"b1": served, "b2": served}


@pytest.mark.slow
def test_keys_move_together_or_not_at_all(client):
    one, two = client.put(weights(7)).id, client.put(weights(8)).id
    client.move_keys({"c.rank0": one, "c.rank1": one}, expect={"c.rank0": None})
    events = client.api.audit(AuditQuery(key="c.rank1", newest=True))
    assert events[-1].seq == client.api.audit(AuditQuery(key="c.rank0", newest=True))[-1].seq + 1
    with pytest.raises(Conflict):
        client.move_keys({"c.rank0": two, "c.rank1": two}, expect={"c.rank1": two})
    assert {client.api.artifact(key).id for key in ("c.rank0", "c.rank1")} == {one}
    run = client.roll_out("c@1", parts={"c.rank0": two, "c.rank1": two})
    assert run.wait(WAIT_S).status == "succeeded"
    assert {client.api.artifact(key).id for key in ("c.rank0", "c.rank1")} == {two}


@pytest.mark.slow
def test_by_the_policy(client):
    client.api.enable_policy("weight-rollout", {"names": ["d"]})
    version = client.publish("d", weights(1), point=False)
    deadline = time.monotonic() + WAIT_S
    while "d" not in client.api.artifact(version).keys:
        assert time.monotonic() < deadline, "nobody rolls it out"
        time.sleep(0.05)
    (plan,) = client.roll_outs("d")
    assert plan.actor == "policy:weight-rollout"
    client.api.disable_policy("weight-rollout")


@pytest.mark.slow
def test_no_call_is_dropped_that_somebody_waits_for(stack, client):
    """A call and the start of its step are in one append; a view may stand between the two."""
    names = ("e1", "e2", "e3")
    client.publish("e", weights(1))
    with engines(stack, "e", "e1@n1", "e2@n2", "e3@n2"):
        plan = tc.Plan("many")
        for name in names:
            each = plan.map(f"all-{name}", shards=60, at_once=1)
            each.call("ask", engine=name, verb="unstage", timeout=15)
        assert client.apply(plan).wait(WAIT_S).status == "succeeded"
