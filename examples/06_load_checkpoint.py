"""Load a checkpoint without a cluster: mapped, copied, one rank's share, into a module in place.

python examples/06_load_checkpoint.py [FILE, FOLDER or s3://bucket/folder]
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from pathlib import Path

import torch

import tensorcast as tc
from tensorcast.schema.safetensors import write_header


def make_checkpoint(folder: Path) -> Path:
    """A small one, for whoever has none at hand."""
    path = folder / "model.safetensors"
    tensors = {f"layer.{n}.weight": torch.randn(512, 512) for n in range(64)}
    head = write_header(((name, "F32", (512, 512)) for name in tensors), {})
    with path.open("wb") as file:
        file.write(head)
        for tensor in tensors.values():
            file.write(tensor.numpy())
    return path


def show(what: str, tensors: dict[str, torch.Tensor], begin: float) -> None:
    size_bytes = sum(tensor.nbytes for tensor in tensors.values())
    took_ms = (time.perf_counter() - begin) * 1e3
    print(f"{what:7} {len(tensors)} tensors, {size_bytes >> 20} MiB in {took_ms:.1f} ms")


def main(source: str | Path) -> None:
    # The better way is chosen: mapped from a disk, copied from a store or a network file system.
    begin = time.perf_counter()
    tensors = tc.load(source)
    show("auto", tensors, begin)

    # Memory of their own: nothing that happens to the file can change them.
    begin = time.perf_counter()
    show("copy", tc.load(source, mode="copy"), begin)

    # Only the bytes that this rank needs are read.
    halves = {re.escape(n): 0 for n, t in tensors.items() if t.dim() and t.shape[0] % 2 == 0}
    begin = time.perf_counter()
    show("rank 0", tc.load(source, view=tc.View.shard(rank=0, world=2, rules=halves)), begin)

    # Into memory that exists: names, dtypes and shapes are checked before a byte is written.
    targets = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
    begin = time.perf_counter()
    tc.load_into(source, targets)
    show("into", targets, begin)
    print(f"equal   {all(torch.equal(targets[n], t) for n, t in tensors.items())}")


if __name__ == "__main__":
    try:
        if len(sys.argv) > 1:
            main(sys.argv[1])
        else:
            with tempfile.TemporaryDirectory() as folder:
                main(make_checkpoint(Path(folder)))
    except tc.TensorCastError as error:
        sys.exit(f"Error: {error}")
