"""The tier GPU, from a request to tensors on a device: movers and a client, each with devices of
ordinary memory that keep the rules of real ones."""

from __future__ import annotations

import pytest
import torch

import tensorcast as tc
from gpu_story import SIZE, TENSORS, read_on_device, tiers
from stack import running_stack

FAKE = {"TENSORCAST_GPU": "fake:2x64MiB", "TENSORCAST_GPU_BYTES": str(16 << 20)}


@pytest.fixture(scope="module")
def stack(_shared_postgres):
    if _shared_postgres.pid is None:
        _shared_postgres.start()
    with running_stack(_shared_postgres.create_database()) as running:
        running.start_mover("n1", **FAKE)
        running.start_mover("n2", **FAKE)
        running.start_mover("n3")
        running.start_controlplane()
        yield running


def test_an_artifact_goes_to_devices_and_to_who_reads_there(stack):
    with stack.connect() as client:
        client.put(TENSORS, key="m")
        assert read_on_device(stack, "n1", FAKE) == "host"
        done = client.replicate("m", to=["n1", "n2"], tier="gpu")
        done.wait(timeout=60)
        assert done.status == "succeeded"
        assert tiers(client, "m") >= {("n1", "dram"), ("n1", "gpu"), ("n2", "gpu")}
        moved = [(one.info.node, one.info.kind, one.info.transports) for one in done.operations]
        assert ("n1", "persist", {"cuda": SIZE}) in moved
        assert ("n2", "materialize", {"cuda": SIZE, "tcp": SIZE}) in moved
        for node in ("n1", "n2"):
            assert read_on_device(stack, node, FAKE) == "handle"
        client.verify("m", timeout=60)


def test_a_node_without_devices_says_so(stack):
    with stack.connect() as client:
        client.put({"x": torch.zeros(10)}, key="small")
        with pytest.raises(tc.TensorCastError, match="TENSORCAST_GPU_BYTES"):
            client.replicate("small", to=["n3"], tier="gpu")


def test_what_was_on_a_device_comes_back_after_a_crash(stack):
    """It goes with the process; the request for it stays."""
    with stack.connect() as client:
        client.put({"x": torch.ones(1000)}, key="again")
        client.replicate("again", to=["n2"], tier="gpu").wait(timeout=60)
        stack.kill("n2")
        stack.start_mover("n2", **FAKE)
        replication = client.replicate("again", to=["n2"], tier="gpu")
        replication.wait(timeout=60)
        assert ("n2", "gpu") in tiers(client, "again")


def test_what_is_cold_makes_room_on_a_device(stack):
    """More than the devices may hold is asked for, one after the other."""
    with stack.connect() as client:
        keys = [f"cold-{n}" for n in range(6)]
        for n, key in enumerate(keys):
            client.put({"x": torch.full((1_500_000,), float(n))}, key=key)
            done = client.replicate(key, to=["n1"], tier="gpu")
            done.wait(timeout=60)
            assert done.status == "succeeded"
        held = [key for key in keys if ("n1", "gpu") in tiers(client, key)]
        assert keys[-1] in held
        assert len(held) <= 4, "two on each device"
        assert {("n1", "dram")} <= tiers(client, keys[0])
