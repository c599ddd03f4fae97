"""Plans: list instances, choose two, publish on A, bring what it published to B's node, hydrate B.

tcctl up --nodes 2 && python examples/09_plans.py

Two small programs stand for the engines A and B. The plan is in the log: it goes on when this
program, an instance, a mover or the control plane dies on the way.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator

import torch

import tensorcast as tc
from tensorcast.engines.presence import Presence

NAMES = ("example-a", "example-b")
TOKENS = 256


def serve(name: str, node: str) -> None:
    """An instance: registers itself, and answers calls until it is ended."""
    life = uuid.uuid4().hex
    with (
        tc.connect(node=node) as client,
        Presence(client.context, kind="example", engine=name, life=life, node=node),
    ):
        calls = client.calls(name)
        print("ready", flush=True)
        for call in calls:
            if call.verb == "publish":
                kv = {"keys": torch.full((TOKENS, 4096), 7.0), "values": torch.ones(TOKENS, 4096)}
                call.answer({"artifact": client.put(kv, kind="kv").id, "tokens": TOKENS})
            elif call.verb == "hydrate":
                kv = client.get(str(call.arguments["artifact"]))
                call.answer({"tokens": int((kv["keys"] == 7.0).all(dim=1).sum())})
            else:
                call.fail(f"{name} cannot {call.verb}.")


@contextlib.contextmanager
def instance(name: str, node: str) -> Iterator[None]:
    """An instance as a process of its own."""
    command = [sys.executable, __file__, name, node]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def make_plan(source: str, target: str, node: str) -> tc.Plan:
    """Publish on A, prefetch on B's node what that gave, hydrate B from there."""
    plan = tc.Plan("hand a prompt over", deadline=300)
    published = plan.call(
        "publish",
        engine=source,
        verb="publish",
        arguments={"prompt": "Once upon a time"},
        returns={"artifact": "artifact", "tokens": "integer"},
        timeout=60,
    )
    prefetched = plan.operation("prefetch", artifact=published["artifact"], node=node)
    hydrated = plan.call(
        "hydrate",
        engine=target,
        verb="hydrate",
        arguments={"artifact": prefetched["artifact"]},
        returns={"tokens": "integer"},
        timeout=60,
    )
    return plan.gives(tokens=hydrated["tokens"], moved=prefetched["bytes_moved"])


def main() -> None:
    """Starts the instances, lists and chooses them, and applies the plan."""
    with tc.connect() as client:
        nodes = [node.node for node in client.api.nodes() if node.state == "up"][:2]
        with instance(NAMES[0], nodes[0]), instance(NAMES[1], nodes[-1]):
            found = [one for one in client.engines() if one.kind == "example"]
            while len(found) < len(NAMES):  # they are just registering
                time.sleep(0.1)
                found = [one for one in client.engines() if one.kind == "example"]
            for one in found:
                print(f"{one.engine} runs on {one.node}")
            first, second = sorted(found, key=lambda one: one.engine)[:2]

            plan = make_plan(first.engine, second.engine, str(second.node))
            print(f"explained: {client.explain(plan).state}")
            run = client.apply(plan).wait(240)
            print(f"{run.id}: {second.engine} holds {run.outputs['tokens']} tokens")
            for path, step in run.steps.items():
                print(f"  {path}: {step.status} at try {step.attempt}")


if __name__ == "__main__":
    try:
        serve(*sys.argv[1:]) if len(sys.argv) == 3 else main()
    except tc.TensorCastError as error:
        sys.exit(f"Error: {error}")
