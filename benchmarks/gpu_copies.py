"""How fast bytes get onto a CUDA device by each of our ways, beside the bare copies in them.

    tests/gpu/run        (or: python -P benchmarks/gpu_copies.py [--mib 512])

Bare: one copy from pinned memory, one within the device. Ours: through pinned buffers out of
pageable memory, as `client.get(device=)` does; by an IPC handle out of another process, as it does
where a replica is on the device. Medians of 5; one line each, and one of JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

import torch

from tensorcast.client.on_device import Block, Place, Source, carry
from tensorcast.gpu.finding import find_gpus
from tensorcast.schema.socket import GpuPlace
from tensorcast.storage.spans import Span

ROUNDS = 5
MIB = 1 << 20

OWNER = """
import sys
from tensorcast.gpu.finding import find_gpus
gpu = find_gpus().gpus[0]
print(gpu.export(gpu.allocate(int(sys.argv[1]))).hex(), flush=True)
sys.stdin.read()
gpu.close()
"""


def measure(size: int, work) -> float:
    """GB/s, the median."""
    work()
    found = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        found.append(size / (time.perf_counter() - began) / 1e9)
    return statistics.median(found)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=512)
    size = parser.parse_args().mib * MIB
    gpu = find_gpus().gpus[0]
    target, other, pinned = gpu.allocate(size), gpu.allocate(size), gpu.pin(size)
    cuda_stream = gpu.open_stream()
    place = Place(gpu, lambda n: Block(torch.empty(n, dtype=torch.uint8), 0))
    pageable = Source(memoryview(bytearray(size)))
    spans = [Span(0, size, target)]

    def bare_in() -> None:
        cuda_stream.copy_in(target, pinned)
        cuda_stream.record().synchronize()

    def bare_within() -> None:
        cuda_stream.copy_within(target, other, size)
        cuda_stream.record().synchronize()

    results = {
        "pinned to device, bare": measure(size, bare_in),
        "within the device, bare": measure(size, bare_within),
        "host to device, staged": measure(size, lambda: carry(pageable, spans, place)),
    }
    command = [sys.executable, "-c", OWNER, str(size)]
    owner = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    handle = bytes.fromhex(owner.stdout.readline().strip())
    source = Source(None, GpuPlace(pci=gpu.properties.pci, handle=handle))
    results["other process, by handle"] = measure(size, lambda: carry(source, spans, place))
    owner.communicate("")
    for name, rate in results.items():
        print(f"{name:28} {rate:8.1f} GB/s")
    print(json.dumps({"bytes": size, "gpu": gpu.properties.name, **results}))


if __name__ == "__main__":
    main()
