"""A plan over two vLLM engines: list them, publish the KV of a prompt on one, bring it to the other
one's node, hydrate the other one.

tcctl up --nodes 2 && python examples/vllm_plan.py MODEL [PYTHON]

MODEL is a folder or a name of Hugging Face; PYTHON the interpreter that has vLLM (else this one).
Once applied the plan is in the log: it goes on when this program dies, an agent or the control
plane.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import tensorcast as tc

CONNECTOR = {
    "kv_connector": "TensorCastConnector",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
}
PORTS = {"plan-a": 8111, "plan-b": 8112}
READY_S_MAX = 300.0
PROMPT = "The quick brown fox jumps over the lazy dog. " * 60


@contextlib.contextmanager
def engine(python: str, model: str, name: str, node: str) -> Iterator[None]:
    """An engine on a node, and (TENSORCAST_WATCH) the agent that does what plans ask of it."""
    config = {**CONNECTOR, "kv_connector_extra_config": {"node": node}}
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", model]
    command += ["--served-model-name", "m", "--port", str(PORTS[name]), "--enforce-eager"]
    command += ["--prefix-caching-hash-algo", "sha256_cbor"]
    command += ["--kv-transfer-config", json.dumps(config)]
    own = {"TENSORCAST_ENGINE": name, "TENSORCAST_NODE": node, "TENSORCAST_WATCH": "1"}
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, env={**os.environ, **own}, stdout=quiet, stderr=quiet)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def wait_known(client: tc.Client) -> dict[str, str]:
    """The names of the engines and their nodes, once the cluster knows both."""
    deadline = time.monotonic() + READY_S_MAX
    while time.monotonic() < deadline:
        found = {str(one.engine): str(one.node) for one in client.engines()}
        if found.keys() >= PORTS.keys():
            return {name: found[name] for name in PORTS}
        time.sleep(0.5)
    sys.exit("The engines did not start.")


def make_plan(source: str, target: str, node: str) -> tc.Plan:
    """Each step goes on with what the one before has given."""
    plan = tc.Plan("hand a prompt over", deadline=300)
    published = plan.call(
        "publish",
        engine=source,
        verb="publish",
        arguments={"prompt": PROMPT, "as_artifact": True},
        returns={"artifact": "artifact", "tokens": "integer"},
        timeout=120,
    )
    prefetched = plan.operation("prefetch", artifact=published["artifact"], node=node)
    hydrated = plan.call(
        "hydrate",
        engine=target,
        verb="hydrate",
        arguments={"artifact": prefetched["artifact"]},
        returns={"tokens": "integer"},
        timeout=120,
    )
    return plan.gives(published=published["tokens"], hydrated=hydrated["tokens"])


def main(model: str, python: str) -> None:
    """Starts two engines and applies the plan."""
    with tc.connect() as client:
        nodes = [node.node for node in client.api.nodes() if node.state == "up"]
        places = dict(zip(PORTS, (nodes[0], nodes[-1]), strict=True))
        with contextlib.ExitStack() as engines:
            for name, node in places.items():
                engines.enter_context(engine(python, model, name, node))
            known = wait_known(client)
            for name, node in known.items():
                print(f"{name} runs on {node}")
            first, second = known
            run = client.apply(make_plan(first, second, known[second])).wait(240)
            print(f"{run.outputs['published']} tokens published by {first}")
            print(f"{run.outputs['hydrated']} tokens held by {second}")


if __name__ == "__main__":
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("python", metavar="PYTHON", nargs="?", default=sys.executable)
    given = parser.parse_args()
    try:
        main(given.model, given.python)
    except (tc.TensorCastError, OSError) as error:
        sys.exit(f"Error: {error}")
