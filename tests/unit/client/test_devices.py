"""The way to a device, as far as it goes without one: what is read, and by whom. The rest is in
tests/gpu."""

from __future__ import annotations

import os

import pytest
import torch
from safetensors.torch import save_file

from tensorcast.client import devices
from tensorcast.client.headers import open_files
from tensorcast.client.load_plan import plan_load, select
from tensorcast.schema.errors import Corrupt, InvalidArgument
from tensorcast.schema.views import View

TENSORS = {"q": torch.arange(4096.0).view(64, 64), "flags": torch.tensor([True, False])}


class Future:
    def __init__(self, size: int) -> None:
        self._size = size

    def get(self) -> int:
        return self._size


class DirectFile:
    """A stand-in for kvikio's class: reads into memory of this machine."""

    opened = 0

    def __init__(self, path: str, mode: str) -> None:
        assert mode == "r"
        self._descriptor = os.open(path, os.O_RDONLY)
        DirectFile.opened += 1

    def pread(self, buffer: torch.Tensor, size: int, file_offset: int) -> Future:
        data = os.pread(self._descriptor, size, file_offset)
        buffer[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        return Future(len(data))

    def close(self) -> None:
        os.close(self._descriptor)
        DirectFile.opened -= 1


@pytest.fixture
def files(tmp_path):
    save_file(TENSORS, tmp_path / "model.safetensors")
    with open_files([tmp_path / "model.safetensors"]) as files:
        yield files


@pytest.mark.parametrize("view", [View(), View.slice("q", dim=1, start=3, length=5)])
def test_every_span_is_read_straight_into_its_place(files, view):
    plan = plan_load(select(view, [file.header for file in files]))
    flat = torch.zeros(plan.size_bytes, dtype=torch.uint8)
    devices._read_direct(files, plan, flat, DirectFile)
    found = devices._build(flat, plan)
    wanted = {**TENSORS, "q": TENSORS["q"][:, 3:8]} if view.slices else TENSORS
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())
    assert DirectFile.opened == 0


def test_a_file_that_is_shorter_is_corrupt(files):
    plan = plan_load(select(View(), [file.header for file in files]))
    os.truncate(files[0].place, 1000)
    flat = torch.zeros(plan.size_bytes, dtype=torch.uint8)
    with pytest.raises(Corrupt, match="changed while it was read"):
        devices._read_direct(files, plan, flat, DirectFile)
    assert DirectFile.opened == 0


def test_a_device_that_is_not_there_is_told(files):
    plan = plan_load(select(View(), [file.header for file in files]))
    with pytest.raises(InvalidArgument, match="no device meta"):
        devices.load_to_device(files, plan, "meta")
    with pytest.raises(InvalidArgument, match="no device nonsense"):
        devices.load_to_device(files, plan, "nonsense")
