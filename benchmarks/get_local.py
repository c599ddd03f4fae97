"""How long `get` takes on the node that holds the artifact, and what memory it adds.

    tcctl up --dram 4GiB
    python benchmarks/get_local.py [--gib 1] [--tensors 300] [--rounds 50] [--json]

Puts an artifact into the local mover, reads it once (which connects), then measures. Private memory
is what no other process shares: before and after a get, and after every byte was read. Exits with 1
when a limit is missed (20 ms, 50 MiB).
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time

import torch

import tensorcast as tc

GET_MS_MAX = 20.0
PRIVATE_MIB_MAX = 50.0


def main() -> int:
    arguments = parse_arguments()
    with tc.connect(node=arguments.node) as client:
        found = measure(client, arguments)
    is_good = found["get_ms_median"] < GET_MS_MAX and found["private_mib_read"] < PRIVATE_MIB_MAX
    found["within_limits"] = is_good
    print(json.dumps(found) if arguments.json else render(found))
    return 0 if is_good else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=1.0, help="size of the artifact")
    parser.add_argument("--tensors", type=int, default=300, help="how many tensors it has")
    parser.add_argument("--rounds", type=int, default=50, help="how many gets are measured")
    parser.add_argument("--node", help="the node to use, if this machine has several")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


def measure(client: tc.Client, arguments: argparse.Namespace) -> dict[str, float]:
    tensors = make_tensors(arguments.gib, arguments.tensors)
    size_bytes = sum(tensor.nbytes for tensor in tensors.values())
    started = time.perf_counter()
    artifact = client.put(tensors)
    put_s = time.perf_counter() - started
    expected = {name: int(tensor.view(torch.int64)[0]) for name, tensor in tensors.items()}
    del tensors
    client.get(artifact.id)
    times_ms = [time_get(client, artifact.id) for _ in range(arguments.rounds)]
    gc.collect()
    before = private_mib()
    found = client.get(artifact.id)
    got = private_mib()
    assert {name: int(t.view(torch.int64)[0]) for name, t in found.items()} == expected
    for tensor in found.values():
        tensor.view(torch.int64).sum()
    read = private_mib()
    client.api.remove_artifact(artifact.id, force=True)
    return {
        "bytes": size_bytes,
        "tensors": arguments.tensors,
        "put_s": put_s,
        "put_gb_s": size_bytes / put_s / 1e9,
        "get_ms_median": statistics.median(times_ms),
        "get_ms_max": max(times_ms),
        "private_mib_got": got - before,
        "private_mib_read": read - before,
    }


def make_tensors(gib: float, count: int) -> dict[str, torch.Tensor]:
    """bf16 tensors, each of other content."""
    elements = int(gib * (1 << 30)) // count // 8 * 4
    base = torch.arange(elements // 4, dtype=torch.int64)
    return {f"model.layers.{n}.weight": (base + n).view(torch.bfloat16) for n in range(count)}


def time_get(client: tc.Client, what: str) -> float:
    """Milliseconds of one get; letting its tensors go again is not counted."""
    started = time.perf_counter()
    tensors = client.get(what)
    elapsed = time.perf_counter() - started
    del tensors
    return elapsed * 1e3


def private_mib() -> float:
    """Memory of this process that it shares with nobody, in MiB."""
    total = 0
    with open("/proc/self/smaps_rollup") as lines:
        for line in lines:
            if line.startswith(("Private_Clean:", "Private_Dirty:")):
                total += int(line.split()[1])
    return total / 1024


def render(found: dict[str, float]) -> str:
    """A small table."""
    rows = [
        ("artifact", f"{found['bytes'] / (1 << 30):.2f} GiB, {found['tensors']} tensors", ""),
        ("put", f"{found['put_s']:.2f} s", f"{found['put_gb_s']:.2f} GB/s"),
        ("get, median", f"{found['get_ms_median']:.2f} ms", f"limit {GET_MS_MAX:g} ms"),
        ("get, slowest", f"{found['get_ms_max']:.2f} ms", ""),
        ("private memory after get", f"{found['private_mib_got']:.1f} MiB", ""),
        (
            "private memory after reading all",
            f"{found['private_mib_read']:.1f} MiB",
            f"limit {PRIVATE_MIB_MAX:g} MiB",
        ),
    ]
    return "\n".join(f"{what:<34}{value:>24}   {note}".rstrip() for what, value, note in rows)


if __name__ == "__main__":
    sys.exit(main())
