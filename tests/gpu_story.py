"""What an application with devices does, told of devices of ordinary memory and of real ones."""

from __future__ import annotations

import os
import subprocess
import sys

import torch

TENSORS = {"w": torch.arange(1_500_000.0), "b": torch.ones(7, dtype=torch.bfloat16)}
SIZE = 6_000_014

READ = """
import sys, torch
import tensorcast as tc
with tc.connect() as client:
    found = client.get("m", device="cuda:0")
    wanted = client.get("m")
    assert all(torch.equal(found[name].cpu(), wanted[name]) for name in wanted)
    part = client.get("m", device="cuda", view=tc.View.slice("w", dim=0, start=5, length=10))
    assert torch.equal(part["w"].cpu(), wanted["w"][5:15])
    from tensorcast.client import devices, on_device
    used = []
    real = on_device._carry_within
    on_device._carry_within = lambda *a: used.append(1) or real(*a)
    client.get("m", device="cuda:0")
    print("handle" if used else "host")
"""


def read_on_device(stack, node: str, more: dict[str, str]) -> str:
    """An application with devices of its own; by which way it got the bytes."""
    environ = {
        "TENSORCAST_NATS_URL": stack.nats.url,
        "TENSORCAST_CLUSTER": "test",
        "TENSORCAST_SOCKET": str(stack.socket(node)),
        "TENSORCAST_NODE": node,
        "HOME": str(stack.folder),
        "PATH": os.environ["PATH"],
        **more,
    }
    command = [sys.executable, "-c", READ]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def tiers(client, what: str) -> set[tuple[str, str]]:
    return {(r.node, r.tier) for r in client.artifact(what).replicas() if r.state == "ready"}
