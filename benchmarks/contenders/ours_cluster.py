"""A cluster of our own for a contender: NATS, Postgres, control plane and movers as `tcctl up`
starts them, in a folder that goes away with it."""

from __future__ import annotations

import os
import time
from importlib.metadata import version
from pathlib import Path

import torch

from harness.processes import cpu_seconds, find_tree
from tensorcast.client import Client, connect
from tensorcast.deploy import cluster
from tensorcast.deploy.options import UpOptions

CONTEXT = "bench"
VERSION = version("tensorcast-taas")
END_S_MAX = 20.0
POLL_S = 0.002
SETTLED_CORES_MAX = 0.05


class Cluster:
    """Up when it is made; `close` purges it. Its processes are in the tree of this worker."""

    def __init__(self, folder: str, *, nodes: int, dram_bytes: int) -> None:
        self.home = Path(folder) / f"cluster-{os.getpid()}"
        os.environ["TENSORCAST_CONFIG_DIR"] = str(Path(folder) / f"config-{os.getpid()}")
        ours = os.environ.pop("PYTHONPATH", "")  # its processes need nothing of the benchmarks
        cluster.up(UpOptions(home=self.home, nodes=nodes, dram_bytes=dram_bytes, context=CONTEXT))
        os.environ["PYTHONPATH"] = ours

    def connect(self, node: str = "n1") -> Client:
        """A client of the mover of one node, connected already."""
        client = connect(CONTEXT, node=node)
        client.stats()
        return client

    def describe(self) -> dict[str, object]:
        """What another process needs to reach it, and its processes."""
        return {"config": os.environ["TENSORCAST_CONFIG_DIR"], "pids": self.pids()}

    def pids(self) -> list[int]:
        """Its processes."""
        services = (s.pid for s in cluster.status(self.home).services if s.pid)
        return sorted({pid for service in services for pid in find_tree(service)})

    def close(self) -> None:
        """Stops everything and deletes what it wrote."""
        cluster.down(self.home, purge=True)


def reach(facts: dict[str, object], node: str = "n1") -> Client:
    """A client, in another process than the one that made the cluster."""
    os.environ["TENSORCAST_CONFIG_DIR"] = str(facts["config"])
    client = connect(CONTEXT, node=node)
    client.stats()
    return client


def tensors_of(memory: memoryview, places: list[tuple[int, int]]) -> dict[str, torch.Tensor]:
    """The pieces as tensors of bytes, named in their order; nothing is copied."""
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    return {f"layers.{n:03}.weight": whole[at : at + size] for n, (at, size) in enumerate(places)}


def compare_tensors(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Raises ValueError unless both are equal, bit for bit."""
    if sorted(found) != sorted(expected):
        raise ValueError("other tensors came than were put")
    for name, tensor in found.items():
        if not torch.equal(tensor.reshape(-1).view(torch.uint8), expected[name]):
            raise ValueError(f"{name} has other bytes")


def rest_of_work(pids: list[int]) -> None:
    """Waits until these processes have next to nothing left to do: what goes on after an answer
    (digests, events) is part of the price."""
    deadline = time.monotonic() + END_S_MAX
    before, since = cpu_seconds(pids), time.monotonic()
    while time.monotonic() < deadline:
        time.sleep(0.1)
        now, at = cpu_seconds(pids), time.monotonic()
        if (now - before) / (at - since) < SETTLED_CORES_MAX:
            return
        before, since = now, at
