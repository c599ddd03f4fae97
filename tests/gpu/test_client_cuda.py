"""Tensors on a CUDA device go in by a copy; needs the device, and no mover."""

from __future__ import annotations

import pytest
import torch

from intakes import written
from tensorcast.client.layout import take_in_tensors

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def write(tensors) -> tuple[str, bytes]:
    intake = take_in_tensors(tensors)
    found, sealed = written(intake)
    return sealed.artifact, found


def test_the_same_content_is_the_same_artifact_wherever_it_lies():
    shared = torch.arange(1_000_000.0)
    tensors = {
        "tied": shared,
        "again": shared,
        "turned": torch.randn(300, 200).t(),
        "part": shared[10:20],
        "half": torch.ones(7, dtype=torch.bfloat16),
        "scalar": torch.tensor(3),
    }
    on_device = shared.cuda()
    copies = {
        **{name: tensor.cuda() for name, tensor in tensors.items()},
        "tied": on_device,
        "again": on_device,
        "part": on_device[10:20],
    }
    assert write(copies) == write(tensors)
