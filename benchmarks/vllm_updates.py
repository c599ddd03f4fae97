"""How long after a training step the first answer of the new weights begins.

    python benchmarks/vllm_updates.py [--rounds 7] [--restarts 2] [--model tiny|smollm2|gibibyte]
                                      (needs `scripts/engines [--smollm2]`)

A trainer has new weights in memory; a vLLM on the same machine serves the old ones. The ways take
turns, each round with other weights, which are there when the clock starts:

* `in_place`: `client.publish` and `update_engines`, bytes checked; the step has left its weights in
  tensors of `client.empty`, as a trainer does that gathers them from its ranks or GPUs;
* `tensorcast`: the same out of ordinary memory, which is copied once more;
* `file`: the weights written as safetensors (into the page cache, not synced), and vLLM's own
  `reload_weights` of that folder between pause and resume;
* `restart`: written likewise, and a new vLLM started from them with its default loader.

Prints one JSON object: for each way the seconds from then to the first token of the first request
(`ttft_s`), the part in which the engine took no work (`paused_s`), each as median with quartiles,
and by how much (`better`: median over rounds, 0 to 1) the first two are better than `file`, counted
from the trainer (`ttft_s`) and for a request that comes as the pause begins (`from_pause_s`).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "engines"))

import torch
from safetensors.torch import load_file, save_file

import engine
import models
from cluster import running_cluster
from tensorcast.client import Client, connect
from tensorcast.engines.vllm.updates import EngineServer, update_engines

MODELS = {
    "tiny": models.tiny_model,
    "smollm2": models.smollm2_model,
    "gibibyte": models.gibibyte_model,
}
KEPT = 2
SHOWN = ("ttft_s", "paused_s", "from_pause_s")
COMPARED = ("ttft_s", "from_pause_s")
WORDS = "the quick brown fox jumps over the lazy dog " * 4
Weights = dict[str, torch.Tensor]
Times = tuple[float, float, float]
"""Seconds from new weights to the first token, of pause, and from the pause to the first token."""
Way = Callable[[Weights], Times]
"""Gives an engine these weights and asks it."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--restarts", type=int, default=2)
    parser.add_argument("--model", choices=MODELS, default="tiny")
    arguments = parser.parse_args()
    model = MODELS[arguments.model]()
    if model is None:
        parser.error("scripts/engines --smollm2 makes that model")
    folder = Path(tempfile.mkdtemp(prefix="tensorcast-updates-"))
    try:
        found = measure(model, folder, arguments.rounds, arguments.restarts)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps({"model": model.name, **found, "load": round(os.getloadavg()[0], 1)}))
    return 0


def measure(model: Path, folder: Path, rounds: int, restarts: int) -> dict[str, object]:
    with running_cluster(folder / "cluster", 1) as cluster:
        named = {n: v for n, v in cluster.env.items() if n.startswith("TENSORCAST_")}
        os.environ.update(named)
        flags = ("--weight-transfer-config", '{"backend":"tensorcast"}')
        server = engine.start(model, folder / "engine", *flags, env=named)
        with connect() as client:
            ways: dict[str, Way] = {
                "in_place": lambda new: by_tensorcast(client, server, lay(client, new)),
                "tensorcast": lambda new: by_tensorcast(client, server, new),
                "file": lambda new: by_file(server, model, folder / "written", new),
            }
            try:
                times = take_turns(ways, load_file(model / "model.safetensors"), rounds)
            finally:
                server.stop()
        weights = load_file(model / "model.safetensors")
        times["restart"] = [by_restart(model, folder, change(weights)) for _ in range(restarts)]
    return summarize(times)


def take_turns(ways: dict[str, Way], weights: Weights, rounds: int) -> dict[str, list]:
    times: dict[str, list] = {name: [] for name in ways}
    for round_ in range(rounds + 1):  # the first warms up
        order = list(ways)[round_ % len(ways) :] + list(ways)[: round_ % len(ways)]
        for name in order:
            weights = change(weights)
            found = ways[name](weights)
            if round_:
                times[name].append(found)
    return times


def change(weights: Weights) -> Weights:
    """What a training step leaves: every weight is another."""
    return {name: value * 0.95 for name, value in weights.items()}  # seen by bfloat16 too


def lay(client: Client, new: Weights) -> Weights:
    """The same weights in memory of the node."""
    placed = client.empty(new)
    for name, value in new.items():
        placed[name].copy_(value)
    return placed


def by_tensorcast(client: Client, server: engine.Engine, new: Weights) -> Times:
    begin = time.monotonic()
    version = client.publish("policy", new)
    (done,) = update_engines(client, [server.url], version)
    updated = time.monotonic()
    server.generate(WORDS, tokens_max=1)
    end = time.monotonic()
    forget(client, version)
    return end - begin, done.paused_s, end - updated + done.paused_s


def forget(client: Client, version: str) -> None:
    """A trainer keeps the last versions only."""
    name, _, number = version.rpartition("@")
    if int(number) > KEPT:
        client.api.remove_artifact(f"{name}@{int(number) - KEPT}", force=True)


def by_file(server: engine.Engine, model: Path, folder: Path, new: Weights) -> Times:
    begin = time.monotonic()
    write(model, folder, new)
    one = EngineServer(server.url)
    paused = time.monotonic()
    one.pause()
    server.ask(
        "/collective_rpc",
        {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}},
    )
    one.resume()
    paused_s = time.monotonic() - paused
    server.generate(WORDS, tokens_max=1)
    end = time.monotonic()
    return end - begin, paused_s, end - paused


def by_restart(model: Path, folder: Path, new: Weights) -> Times:
    begin = time.monotonic()
    write(model, folder / "restart", new)
    server = engine.start(folder / "restart", folder / "again")
    try:
        server.generate(WORDS, tokens_max=1)
        took_s = time.monotonic() - begin
    finally:
        server.stop()
    return took_s, took_s, took_s


def write(model: Path, folder: Path, weights: Weights) -> None:
    """A checkpoint folder with these weights."""
    folder.mkdir(exist_ok=True)
    for file in model.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, folder / file.name)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def summarize(times: dict[str, Sequence[Times]]) -> dict[str, object]:
    ways = {
        name: {what: spread([one[at] for one in found]) for at, what in enumerate(SHOWN)}
        for name, found in times.items()
        if found
    }
    better = {
        name: {what: compare(times[name], times["file"], SHOWN.index(what)) for what in COMPARED}
        for name in ("in_place", "tensorcast")
    }
    return {"better": better, "rounds": len(times["file"]), **ways}


def compare(ours: Sequence[Times], theirs: Sequence[Times], at: int) -> float:
    """By how much a time is better, in the median of the rounds."""
    pairs = zip(ours, theirs, strict=True)
    return round(statistics.median(1 - one[at] / other[at] for one, other in pairs), 3)


def spread(values: Sequence[float]) -> list[float]:
    """Median and quartiles."""
    low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else (values * 3)[:3]
    return [round(one, 4) for one in (statistics.median(values), low, high)]


if __name__ == "__main__":
    sys.exit(main())
