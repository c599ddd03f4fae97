"""An artifact onto a device of ordinary memory: out of the host's memory and out of another
process' device, whole, cut, tied and strided."""

from __future__ import annotations

import ctypes
import os
import weakref

import pytest
import torch

from intakes import written
from tensorcast.client.device_plan import plan_block
from tensorcast.client.layout import take_in_tensors
from tensorcast.client.on_device import (
    Block,
    Place,
    Source,
    get_into_device,
    get_on_device,
)
from tensorcast.gpu.fake import FakeGpu
from tensorcast.gpu.staging import Piece, Staging
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.socket import GpuPlace
from tensorcast.schema.views import View, resolve

_shared = torch.arange(100_000.0)
TENSORS = {
    "tied": _shared,
    "again": _shared,
    "part": _shared[10:20],
    "turned": torch.randn(300, 200).t(),
    "half": torch.ones(7, dtype=torch.bfloat16),
    "rows": torch.arange(4096.0).view(64, 64),
    "scalar": torch.tensor(3),
    "none": torch.empty((0, 4)),
}


@pytest.fixture
def place():
    gpu = FakeGpu()

    def new_block(size_bytes):
        address, size = gpu.allocate(size_bytes), max(1, size_bytes)
        memory = (ctypes.c_ubyte * size).from_address(address)
        weakref.finalize(memory, gpu.free, address)
        return Block(torch.frombuffer(memory, dtype=torch.uint8), address)

    yield Place(gpu, new_block)
    gpu.close()


@pytest.fixture(params=["host", "gpu"])
def source(request):
    """Where the bytes of TENSORS are, and their index."""
    intake = take_in_tensors(TENSORS)
    content, _ = written(intake)
    if request.param == "host":
        yield Source(memoryview(bytearray(content))), intake.index
        return
    owner = FakeGpu()
    address = owner.allocate(len(content))

    def move(part, start):
        part[:] = content[start : start + len(part)]

    with Staging(owner) as staging:
        staging.fill([Piece(address, len(content), move)])
    place = GpuPlace(pci=owner.properties.pci, handle=owner.export(address))
    ours, theirs = os.pipe()
    yield Source(None, place, ours), intake.index
    os.close(theirs)
    owner.free(address)  # nobody has it open any more
    owner.close()


def test_every_tensor_is_exact_and_ties_stay(source, place):
    found, index = source
    tensors = get_on_device(found, resolve(View(), index), place)
    found.close()
    assert list(tensors) == list(TENSORS)
    for name, wanted in TENSORS.items():
        assert tensors[name].dtype == wanted.dtype
        assert torch.equal(tensors[name], wanted), name
    tensors["again"][15] = -1
    assert tensors["tied"][15] == tensors["part"][5] == -1
    assert place.gpu.used_bytes
    del tensors
    assert not place.gpu.used_bytes, "the memory goes with its last tensor"


@pytest.mark.parametrize("dim", [0, 1])
def test_of_a_part_only_its_bytes_come(source, place, dim):
    found, index = source
    view = View.slice("rows", dim=dim, start=8, length=16)
    chosen = resolve(view, index)
    rows = [item for item in chosen if item.spec.name == "rows"]
    assert plan_block(rows).size_bytes == 16 * 64 * 4
    tensors = get_on_device(found, rows, place)
    found.close()
    assert torch.equal(tensors["rows"], TENSORS["rows"].narrow(dim, 8, 16))


def test_targets_of_the_device_are_filled_where_they_are(source, place):
    found, index = source
    block = place.new_block(1 << 20)
    rows = block.flat[: 4096 * 4].view(torch.float32).view(64, 64)
    turned = block.flat[1 << 16 : (1 << 16) + 240_000].view(torch.float32).view(300, 200).t()
    targets = {"rows": rows, "turned": turned}
    get_into_device(found, resolve(View(), index), targets, place, strict=False)
    assert torch.equal(rows, TENSORS["rows"])
    assert torch.equal(turned, TENSORS["turned"])
    with pytest.raises(InvalidArgument, match="no target"):
        get_into_device(found, resolve(View(), index), targets, place, strict=True)
    found.close()
