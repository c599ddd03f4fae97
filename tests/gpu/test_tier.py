"""The tier GPU over a real device: two movers, a control plane, applications."""

from __future__ import annotations

import pytest
import torch

import tensorcast as tc
from gpu_story import TENSORS, read_on_device, tiers
from stack import running_stack

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
REAL = {"TENSORCAST_GPU": "auto", "TENSORCAST_GPU_BYTES": str(256 << 20)}


@pytest.fixture(scope="module")
def stack(_shared_postgres):
    if _shared_postgres.pid is None:
        _shared_postgres.start()
    with running_stack(_shared_postgres.create_database()) as running:
        for node in ("n1", "n2"):
            running.start_mover(node, **REAL)
        running.start_controlplane()
        yield running


def test_an_artifact_goes_to_devices_and_to_who_reads_there(stack):
    with stack.connect() as client:
        client.put(TENSORS, key="m")
        assert read_on_device(stack, "n1", {}) == "host"
        client.replicate("m", to=["n1", "n2"], tier="gpu").wait(timeout=60)
        assert tiers(client, "m") >= {("n1", "gpu"), ("n2", "gpu")}
        for node in ("n1", "n2"):
            assert read_on_device(stack, node, {}) == "handle"
        client.verify("m", timeout=60)


def test_tensors_of_a_device_are_put_and_parameters_are_filled(stack):
    on_device = {name: tensor.cuda() for name, tensor in TENSORS.items()}
    with stack.connect() as client:
        assert client.put(on_device, key="d").id == client.put(TENSORS, key="h").id
        targets = {name: torch.zeros_like(tensor) for name, tensor in on_device.items()}
        busy = torch.cuda.Stream()
        with torch.cuda.stream(busy):
            torch.cuda._sleep(10_000_000)  # an engine at work
        client.get_into("d", targets)
        assert all(torch.equal(targets[name], on_device[name]) for name in targets)
        part = client.get("d", device="cuda", view=tc.View.slice("w", dim=0, start=7, length=9))
        assert torch.equal(part["w"], on_device["w"][7:16])
