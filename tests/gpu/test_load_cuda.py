"""Checkpoints into the memory of a CUDA device, with kvikio and without."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

import tensorcast as tc
from tensorcast.client import devices

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
TENSORS = {
    "q": torch.arange(4096.0 * 4096).view(4096, 4096),
    "norm": torch.arange(64, dtype=torch.bfloat16),
    "scalar": torch.tensor(7, dtype=torch.int64),
    "empty": torch.zeros((0, 5)),
}


@pytest.fixture
def path(tmp_path):
    save_file(TENSORS, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def check(found, wanted=TENSORS) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].device.type == "cuda"
        assert torch.equal(found[name].cpu(), tensor), name


@pytest.mark.parametrize("has_kvikio", [True, False])
def test_a_checkpoint_is_loaded(path, monkeypatch, has_kvikio):
    if has_kvikio:
        pytest.importorskip("kvikio")
    else:
        monkeypatch.setattr(devices, "_find_kvikio", lambda: None)
    check(tc.load(path, device="cuda"))
    view = tc.View.shard(rank=1, world=2, rules={"q": 1})
    check(tc.load(path, view=view, device="cuda"), {**TENSORS, "q": TENSORS["q"][:, 2048:]})


def test_targets_on_the_device_are_filled(path):
    targets = {name: torch.empty_like(tensor, device="cuda") for name, tensor in TENSORS.items()}
    tc.load_into(path, targets)
    check(targets)
