"""Which device the targets of a get are on."""

from types import SimpleNamespace

import pytest
import torch

from tensorcast.client.device_gets import device_of
from tensorcast.schema.errors import InvalidArgument


def on(*devices):
    return {str(n): SimpleNamespace(device=device) for n, device in enumerate(devices)}


def test_targets_in_ordinary_memory_are_on_no_device():
    assert device_of({"a": torch.zeros(1)}) is None
    assert device_of({}) is None
    assert device_of("no mapping") is None


def test_all_are_on_one_device():
    assert device_of(on("cuda:1", "cuda:1")) == "cuda:1"
    with pytest.raises(InvalidArgument, match="cpu, cuda:0"):
        device_of(on("cuda:0", "cpu"))
