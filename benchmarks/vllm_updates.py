"""How long after a training step the first answer of the new weights begins.

    python benchmarks/vllm_updates.py [--rounds 7] [--restarts 2] [--model tiny|smollm2|gibibyte]
                                      (needs `scripts/engines [--smollm2]`)

A trainer has new weights in memory; a vLLM on the same machine serves the old ones. The ways take
turns, each round with other weights:

* `tensorcast`: `client.publish` and `update_engines`, bytes checked;
* `file`: the weights written as safetensors (into the page cache, not synced), and vLLM's own
  `reload_weights` of that folder between pause and resume;
* `restart`: written likewise, and a new vLLM started from them with its default loader.

Prints one JSON object: for each way the seconds from then to the first token of the first request
(`ttft_s`), the part in which the engine took no work (`paused_s`), each as median with quartiles,
and by how much the first is better than the second (`better`: median over rounds, 0 to 1).
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
WORDS = "the quick brown fox jumps over the lazy dog " * 4
Weights = dict[str, torch.Tensor]
Way = Callable[[Weights], tuple[float, float]]
"""Gives an engine these weights and asks it: seconds to the first token, seconds of pause."""


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
        order = list(reversed(ways)) if round_ % 2 else list(ways)
        for name in order:
            weights = change(weights)
            found = ways[name](weights)
            if round_:
                times[name].append(found)
    return times


def change(weights: Weights) -> Weights:
    """What a training step leaves: every weight is another."""
    return {name: value * 0.95 for name, value in weights.items()}  # seen by bfloat16 too


def by_tensorcast(client: Client, server: engine.Engine, new: Weights) -> tuple[float, float]:
    begin = time.monotonic()
    version = client.publish("policy", new)
    (done,) = update_engines(client, [server.url], version)
    server.generate(WORDS, tokens_max=1)
    total_s = time.monotonic() - begin
    forget(client, version)
    return total_s, done.paused_s


def forget(client: Client, version: str) -> None:
    """A trainer keeps the last versions only."""
    name, _, number = version.rpartition("@")
    if int(number) > KEPT:
        client.api.remove_artifact(f"{name}@{int(number) - KEPT}", force=True)


def by_file(server: engine.Engine, model: Path, folder: Path, new: Weights) -> tuple[float, float]:
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
    return time.monotonic() - begin, paused_s


def by_restart(model: Path, folder: Path, new: Weights) -> tuple[float, float]:
    begin = time.monotonic()
    write(model, folder / "restart", new)
    server = engine.start(folder / "restart", folder / "again")
    try:
        server.generate(WORDS, tokens_max=1)
        took_s = time.monotonic() - begin
    finally:
        server.stop()
    return took_s, took_s


def write(model: Path, folder: Path, weights: Weights) -> None:
    """A checkpoint folder with these weights."""
    folder.mkdir(exist_ok=True)
    for file in model.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, folder / file.name)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def summarize(times: dict[str, Sequence[tuple[float, float]]]) -> dict[str, object]:
    pairs = zip(times["tensorcast"], times["file"], strict=True)
    better = statistics.median(1 - ours[0] / theirs[0] for ours, theirs in pairs)
    ways = {
        name: {"ttft_s": spread([a for a, _ in one]), "paused_s": spread([b for _, b in one])}
        for name, one in times.items()
        if one
    }
    return {"better": round(better, 3), "rounds": len(times["file"]), **ways}


def spread(values: Sequence[float]) -> list[float]:
    """Median and quartiles."""
    low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else (values * 3)[:3]
    return [round(one, 4) for one in (statistics.median(values), low, high)]


if __name__ == "__main__":
    sys.exit(main())
