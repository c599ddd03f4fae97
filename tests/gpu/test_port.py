"""The port over a real device: what the fake promises, the driver keeps."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest
import torch

from tensorcast.client.devices import open_place
from tensorcast.gpu.finding import find_gpus
from tensorcast.gpu.port import GRANULE_BYTES, HANDLE_BYTES
from tensorcast.gpu.staging import Piece, Staging
from tensorcast.schema.errors import Corrupt, OutOfCapacity, TensorCastError, Unavailable

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

ADOPT = """
import sys
from tensorcast.gpu.finding import find_gpus
gpu = find_gpus().gpus[0]
address = gpu.adopt(bytes.fromhex(sys.argv[1]))
buffer, cuda_stream = gpu.pin(4096), gpu.open_stream()
cuda_stream.copy_out(buffer, address)
cuda_stream.record().synchronize()
sys.stdout.buffer.write(bytes(buffer))
gpu.release(address)
gpu.unpin(buffer)
gpu.close()
"""


@pytest.fixture(scope="module")
def gpu():
    gpus = find_gpus().gpus
    assert gpus, "torch sees a device, and so does the driver"
    yield gpus[0]
    for one in gpus:
        one.close()


def test_properties_are_those_of_torch(gpu):
    found = torch.cuda.get_device_properties(0)
    assert (gpu.properties.name, gpu.properties.index) == (found.name, 0)
    assert abs(gpu.properties.total_bytes - found.total_memory) < 1 << 30
    assert os.path.exists(f"/sys/bus/pci/devices/{gpu.properties.pci}")


def test_bytes_through_pinned_buffers_are_exact(gpu):
    content = random.Random(1).randbytes(20_000_001)
    address = gpu.allocate(len(content))
    found = bytearray(len(content))

    def give(part, start):
        part[:] = content[start : start + len(part)]

    def take(part, start):
        found[start : start + len(part)] = part

    with Staging(gpu) as staging:
        staging.fill([Piece(address, len(content), give)])
        staging.drain([Piece(address, len(content), take)])
    assert found == content
    gpu.free(address)


def test_streams_wait_for_events_and_not_for_each_other(gpu):
    address, buffer, back = gpu.allocate(1 << 20), gpu.pin(1 << 20), gpu.pin(1 << 20)
    buffer[:] = b"7" * len(buffer)
    first, second = gpu.open_stream(), gpu.open_stream()
    first.copy_in(address, buffer)
    second.wait_for(first.record())
    second.copy_out(back, address)
    event = second.record()
    event.synchronize()
    assert event.is_done()
    assert bytes(back) == bytes(buffer)
    gpu.unpin(buffer)
    gpu.unpin(back)
    gpu.free(address)


def test_another_process_opens_what_was_exported(gpu):
    address, buffer, cuda_stream = gpu.allocate(4096), gpu.pin(4096), gpu.open_stream()
    buffer[:] = bytes(range(256)) * 16
    cuda_stream.copy_in(address, buffer)
    cuda_stream.record().synchronize()
    handle = gpu.export(address)
    assert len(handle) == HANDLE_BYTES
    command = [sys.executable, "-c", ADOPT, handle.hex()]
    done = subprocess.run(command, capture_output=True, timeout=60)
    assert done.stdout == bytes(buffer), done.stderr
    with pytest.raises(Corrupt):
        gpu.adopt(b"short")
    with pytest.raises(TensorCastError):
        gpu.adopt(b"\1" * HANDLE_BYTES)
    gpu.unpin(buffer)
    gpu.free(address)


def test_memory_has_an_end(gpu):
    with pytest.raises(OutOfCapacity):
        gpu.allocate(1 << 50)


def test_a_dmabuf_is_given_or_refused_in_a_sentence(gpu):
    address = gpu.allocate(GRANULE_BYTES)
    if gpu.properties.has_dmabuf:
        fd = gpu.open_dmabuf(address, GRANULE_BYTES)
        assert "dmabuf" in os.readlink(f"/proc/self/fd/{fd}")
        os.close(fd)
    else:
        with pytest.raises(Unavailable):
            gpu.open_dmabuf(address, GRANULE_BYTES)
    gpu.free(address)


def test_an_adapter_registers_the_memory_where_there_is_one(gpu):
    pytest.importorskip("pyverbs.device")
    from tensorcast.movers.memory.cuda import CudaPool
    from tensorcast.movers.transports.rdma.transport import open_transport
    from tensorcast.schema.rdma import RdmaSettings

    try:
        transport = open_transport("c", "n", RdmaSettings())
    except Unavailable as error:
        pytest.skip(str(error))
    pool = CudaPool([gpu], 64 << 20)
    segment = pool.allocate(8 << 20)
    transport.register_device(segment).close()
    pool.release(segment)
    transport.close()


def test_tensors_and_streams_of_torch_are_good_here(gpu):
    tensor = torch.arange(1000, dtype=torch.int32, device="cuda:0")
    torch.cuda.synchronize()
    place, buffer = open_place("cuda:0"), gpu.pin(4000)
    cuda_stream = place.gpu.open_stream()
    cuda_stream.copy_out(buffer, tensor.data_ptr())
    cuda_stream.record().synchronize()
    assert torch.equal(torch.frombuffer(bytearray(buffer), dtype=torch.int32), tensor.cpu())
    block = place.new_block(4000)
    cuda_stream.copy_in(block.address, buffer)
    cuda_stream.record().synchronize()
    assert torch.equal(block.flat.view(torch.int32), tensor)
    gpu.unpin(buffer)
