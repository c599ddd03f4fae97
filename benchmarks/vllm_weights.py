"""How long vLLM takes to load weights: its own loader beside `--load-format tensorcast`.

    tcctl up --dram 4GiB
    scripts/engines --smollm2
    .cache/engines/vllm/bin/python -P benchmarks/vllm_weights.py MODEL_FOLDER... [--dtype T]
        [--rounds 5] [--json]

Each model is put on the local node first, so this is what a second engine of a node sees. In one
process the model is loaded in turns: by vLLM's loader from a disk whose page cache was dropped, by
it from the page cache, and from the node's replica; each time into a new model. `load` is
`load_weights`, what the format decides; `first use` is one look at each page of the parameters,
which is when mapped memory costs something; `ready` is all from the first call to that: the model
made, loaded and processed (an engine on a CPU repacks its matrices). `private` is anonymous memory
that the loaded model adds to the process.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import NamedTuple

WAYS = ("disk cold", "disk warm", "tensorcast")
PAGE_BYTES = 4096


class Loaded(NamedTuple):
    """One load: seconds, and bytes of private memory that the model takes."""

    load_s: float
    ready_s: float
    first_use_s: float
    private_bytes: int


def main() -> int:
    arguments = parse_arguments()
    if arguments.worker:
        print(json.dumps(measure(arguments.models[0], arguments.dtype, arguments.rounds)))
        return 0
    found = {model.name: run_worker(model, arguments) for model in arguments.models}
    print(json.dumps(found) if arguments.json else render(found))
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path, help="folders of models")
    parser.add_argument("--dtype", default="auto", help="what vLLM computes in")
    parser.add_argument("--rounds", type=int, default=5, help="how often each way is measured")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def run_worker(model: Path, arguments: argparse.Namespace) -> dict[str, list[Loaded]]:
    """The measurements of one model, in a process of its own."""
    command = [sys.executable, "-P", __file__, str(model), "--worker"]
    command += ["--dtype", arguments.dtype, "--rounds", str(arguments.rounds)]
    environ = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "MALLOC_MMAP_THRESHOLD_": "131072",  # freed tensors go back: each load begins alike
    }
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return {way: [Loaded(*one) for one in loads] for way, loads in found.items()}


# ---- in the process of an engine ---------------------------------------------------------------


def measure(model: Path, dtype: str, rounds: int) -> dict[str, list[Loaded]]:
    """Loads a model in turns. The first turn of each way counts for nothing."""
    import tensorcast as tc

    with tc.connect() as client:
        artifact = client.put(model).id
    warnings.simplefilter("ignore")
    found: dict[str, list[Loaded]] = {way: [] for way in WAYS}
    configs = {way: configure(model, dtype, way, artifact) for way in WAYS}
    begin_distributed(configs["disk warm"])
    for number in range(rounds + 1):
        for way in WAYS:
            if way == "disk cold":
                drop_cache(model)
            loaded = load_once(configs[way])
            if number:
                found[way].append(loaded)
    return found


def configure(model: Path, dtype: str, way: str, artifact: str) -> object:
    from vllm.engine.arg_utils import EngineArgs

    ours = {
        "load_format": "tensorcast",
        "model_loader_extra_config": {"artifact": artifact, "fallback": False},
    }
    return EngineArgs(
        model=str(model),
        dtype=dtype,
        enforce_eager=True,
        max_model_len=2048,
        use_tqdm_on_load=False,
        **(ours if way == "tensorcast" else {}),
    ).create_engine_config()


def begin_distributed(config: object) -> None:
    from vllm.config import set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    import torch

    torch.accelerator.empty_cache = lambda: None  # as vLLM's worker for the CPU does
    with set_current_vllm_config(config):
        init_distributed_environment(1, 0, "tcp://127.0.0.1:0", 0, "gloo")
        initialize_model_parallel(1, 1)


def load_once(config) -> Loaded:
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader import get_model_loader

    config.compilation_config.static_forward_context.clear()  # of the model before
    before = anonymous_bytes()
    loader = get_model_loader(config.load_config)
    load_s = 0.0
    inner = loader.load_weights

    def timed(*given: object) -> None:
        nonlocal load_s
        begin = time.perf_counter()
        inner(*given)
        load_s = time.perf_counter() - begin

    loader.load_weights = timed
    begin = time.perf_counter()
    with set_current_vllm_config(config):
        model = loader.load_model(vllm_config=config, model_config=config.model_config)
    loaded_at = time.perf_counter()
    touch(model)
    ready_at = time.perf_counter()
    private_bytes = anonymous_bytes() - before
    config.compilation_config.static_forward_context.clear()
    del model, loader
    return Loaded(load_s, ready_at - begin, ready_at - loaded_at, private_bytes)


def touch(model) -> None:
    """Reads a byte of each page of the parameters."""
    import torch

    for parameter in model.parameters():
        data = parameter.data
        if data.numel() and data.is_contiguous():
            int(data.view(-1).view(torch.uint8)[::PAGE_BYTES].sum())


def anonymous_bytes() -> int:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/smaps_rollup tells no anonymous memory")


def drop_cache(model: Path) -> None:
    """Takes the weights out of the page cache."""
    for path in model.glob("*.safetensors"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


# ---- what is printed ---------------------------------------------------------------------------


def render(found: dict[str, dict[str, list[Loaded]]]) -> str:
    lines = ["| model | loader | load, s | first use, s | ready, s | private, MiB |"]
    lines.append("|---|---|---|---|---|---|")
    for model, ways in found.items():
        for way, loads in ways.items():
            middle = [statistics.median(values) for values in zip(*loads, strict=True)]
            load_s, ready_s, first_use_s, private_bytes = middle
            lines.append(
                f"| {model} | {way} | {load_s:.3f} | {first_use_s:.3f} | {ready_s:.3f} | "
                f"{private_bytes / 2**20:.0f} |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
