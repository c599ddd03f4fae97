"""A key that moves with each training step, replicas on every node, and who did what.

tcctl up --nodes 2 && python examples/02_replicate.py
"""

from __future__ import annotations

import sys

import torch

import tensorcast as tc

KEY = "examples/policy@latest"


def main() -> None:
    with tc.connect() as client:
        for step in range(1, 4):
            publish(client, step)
        print(f"{KEY} was moved {client.api.key(KEY).version} times")
        for event in client.artifact(KEY).history():
            cause = "" if event.cause is None else f"  because of {event.cause[-12:]}"
            print(f"{event.seq:>6}  {event.id[-12:]}  {event.type:<28}{event.actor:<24}{cause}")


def publish(client: tc.Client, step: int) -> None:
    """Moves the key from the artifact it points to now to the one of this step."""
    weights = {"policy.weight": torch.full((1024, 1024), float(step)), "step": torch.tensor(step)}
    try:
        current = client.api.key(KEY).artifact
    except tc.NotFound:
        current = None
    artifact = client.put(weights, key=KEY, expect=current, labels={"step": str(step)})
    replication = client.replicate(KEY, to="all")
    replication.wait(timeout=60)
    places = ", ".join(f"{r.node}/{r.tier}" for r in artifact.replicas() if r.state == "ready")
    print(f"step {step}: {artifact.id[:12]} is on {places}")


if __name__ == "__main__":
    try:
        main()
    except tc.TensorCastError as error:
        sys.exit(f"Error: {error}")
