"""What a scale-out of real vLLM engines costs.

    python benchmarks/vllm_scale.py [--rounds 5] [--only start|first|prompt] [--samples FILE]
    (needs `scripts/engines --smollm2`, and root for network namespaces)

Prints one JSON object a line; seconds, medians of rounds in which all ways take turns. Every node
is a network namespace with a card of its own (tests/netlab.py) and its own mover.

* `start`: the weights are on one node, links of 1 Gbit/s; one engine loads them on another node,
  or four on four nodes at once. `loaded` is the time of vLLM's model loader (the real one, in a
  process of its own on each node, not a whole server: four do not fit on the CPUs of a small
  machine) from its own start to the last weight in its place; of four, that of the slowest. `ready`
  is all until the model is processed (which repacks matrices, by the CPUs that all nodes share
  here). `ratio` is four against the one of the same round. `cpu` is what the four engines' own
  processes took in CPU seconds until then.
* `first`: a whole engine is started and asked a short prompt: from its start to the first token.
  `disk_cold` and `disk_warm`: vLLM's loader and a checkpoint on disk, which the page cache has not
  or has; `replica`: tensorcast, the node has the weights; `pulled`: tensorcast, another node has
  them (unlimited link, no weights on the engine's disk). `better` is against `disk_cold` of the
  same round. `loading` is what vLLM itself says that loading the weights took.
* `prompt`: the same, and the first prompt has 2,000 tokens that another engine knows: vLLM's loader
  and the prompt computed (`cold`, `warm`: as above), or weights and KV blocks from the other node
  (`shared`). `ttft` is from the request to its first token, `total` from the engine's start.

With --samples the rounds are added to a file, and what is printed is made of all that is in it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "engines"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import engine
import models
from vllm_weights import begin_distributed, configure, drop_cache, touch

RECEIVERS = ("r1", "r2", "r3", "r4")
SHORT = "the quick brown fox jumps over the lazy dog"
MIDDLE = 2000
LOADING = re.compile(r"Loading weights took ([\d.]+) seconds")
Sample = dict[str, float]


def report(what: str, **more: object) -> None:
    """One line of the result."""
    print(json.dumps({"what": what, **more, "load": round(os.getloadavg()[0], 1)}), flush=True)


class Samples:
    """The rounds measured so far, also by earlier runs if there is a file."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lines: list[tuple[str, Sample]] = []
        if path is not None and path.exists():
            self._lines = [tuple(json.loads(line)) for line in path.read_text().splitlines()]

    def add(self, what: str, sample: Sample) -> None:
        self._lines.append((what, sample))
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps((what, sample)) + "\n")

    def tell(self, what: str, **more: object) -> None:
        """Prints the medians of all rounds of a measurement."""
        found = [sample for name, sample in self._lines if name == what]
        medians = {
            name: round(statistics.median(sample[name] for sample in found), 3) for name in found[0]
        }
        report(what, **medians, rounds=len(found), **more)


# ---- four loaders at once ----------------------------------------------------------------------


async def start(folder: Path, rounds: int, samples: Samples) -> None:
    """One loader and four, on nodes that have no weights."""
    import lab_cluster

    for model in filter(None, (models.smollm2_model(), models.gibibyte_half_model())):
        async with lab_cluster.cluster("a", *RECEIVERS, rate="1gbit") as made:
            made.start("a", *RECEIVERS, dram_bytes=1200 << 20)
            artifact, bare = put(made, model, folder / model.name)
            with ExitStack() as stack:
                loaders = [
                    stack.enter_context(loading(made, host, bare, artifact)) for host in RECEIVERS
                ]
                for round_ in range(rounds + 1):  # the first warms up
                    one = load(loaders[:1])
                    await made.evict(artifact, RECEIVERS[0])
                    four = load(loaders)
                    await made.evict(artifact, *RECEIVERS)
                    if round_:
                        samples.add(f"start {model.name}", compare(one, four))
        samples.tell(f"start {model.name}", rate="1gbit", bytes=size_bytes(model))


def context_of(made, host: str):
    from tensorcast.client import Context, NodeContext

    nodes = {name: NodeContext(socket=str(one.socket)) for name, one in made.movers.items()}
    return Context(cluster="test", nats_url=made.nats_url, nodes=nodes, default_node=host)


def environ_of(made, host: str) -> dict[str, str]:
    return {
        "TENSORCAST_CLUSTER": "test",
        "TENSORCAST_NODE": host,
        "TENSORCAST_SOCKET": str(made.movers[host].socket),
        "TENSORCAST_NATS_URL": made.nats_url,
    }


def size_bytes(model: Path) -> int:
    return sum(file.stat().st_size for file in model.glob("*.safetensors"))


@contextmanager
def loading(made, host: str, bare: Path, artifact: str) -> Iterator[subprocess.Popen[str]]:
    """A process on a host that loads the model whenever it is told to."""
    environ = {
        **engine.clean_environment(),
        **engine.ENVIRONMENT,
        **environ_of(made, host),
        "VLLM_LOGGING_LEVEL": "WARNING",
    }
    command = [*made.lab.enter(host), str(engine.PYTHON), "-P", __file__, "--loader", str(bare)]
    process = subprocess.Popen(
        [*command, artifact],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        answer(process)
        yield process
    finally:
        process.kill()
        process.communicate()


def answer(process: subprocess.Popen[str]) -> Sample:
    """The next line that is ours."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            return json.loads(line)
    raise AssertionError("the loader has ended")


def load(loaders: list[subprocess.Popen[str]]) -> list[Sample]:
    """Has all load at once; each drops its model again."""
    for one in loaders:
        assert one.stdin is not None
        one.stdin.write("load\n")
        one.stdin.flush()
    return [answer(one) for one in loaders]


def compare(one: list[Sample], four: list[Sample]) -> Sample:
    slowest = {name: max(sample[name] for sample in four) for name in four[0]}
    return {
        "loaded_one_s": one[0]["loaded_s"],
        "loaded_four_s": slowest["loaded_s"],
        "ratio": slowest["loaded_s"] / one[0]["loaded_s"],
        "ready_one_s": one[0]["ready_s"],
        "ready_four_s": slowest["ready_s"],
        "ready_ratio": slowest["ready_s"] / one[0]["ready_s"],
        "cpu_one_s": one[0]["cpu_s"],
        "cpu_four_s": sum(sample["cpu_s"] for sample in four),
    }


def serve_loads(bare: str, artifact: str) -> None:
    """In a process of its own: loads the model for each line of the standard input."""
    config = configure(Path(bare), "auto", "tensorcast", artifact)
    begin_distributed(config)
    print("{}", flush=True)
    for _ in sys.stdin:
        print(json.dumps(load_once(config)), flush=True)


def load_once(config) -> Sample:
    found = measure_load(config)
    config.compilation_config.static_forward_context.clear()
    gc.collect()  # with a model alive the node cannot evict the replica
    return found


def measure_load(config) -> Sample:
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader import get_model_loader

    loader = get_model_loader(config.load_config)
    inner = loader.load_weights
    loaded_at = begin = time.perf_counter()
    cpu = time.process_time()

    def timed(*given: object) -> None:
        nonlocal loaded_at
        inner(*given)
        loaded_at = time.perf_counter()

    loader.load_weights = timed
    with set_current_vllm_config(config):
        model = loader.load_model(vllm_config=config, model_config=config.model_config)
    touch(model)
    return {
        "loaded_s": loaded_at - begin,
        "ready_s": time.perf_counter() - begin,
        "cpu_s": time.process_time() - cpu,
    }


# ---- the first token of a new engine -----------------------------------------------------------


async def first(folder: Path, rounds: int, samples: Samples) -> None:
    """From the start of an engine to the first token of a short prompt."""
    import lab_cluster

    model = models.large_model()
    what = f"first {model.name}"
    async with lab_cluster.cluster("a", "b", rate=None) as made:
        made.start("a", "b", dram_bytes=size_bytes(model) + (256 << 20))
        artifact, bare = put(made, model, folder)
        theirs = ("--dtype", "bfloat16", "--max-model-len", "1024")
        ours = (*loader_flags(artifact), *theirs)

        def disk_cold() -> Sample:
            drop_cache(model)
            return begin(made, "b", model, folder, SHORT, *theirs)

        ways: dict[str, Callable[[], Sample]] = {
            "disk_cold": disk_cold,
            "disk_warm": lambda: begin(made, "b", model, folder, SHORT, *theirs),
            "replica": lambda: begin(made, "a", bare, folder, SHORT, *ours),
            "pulled": lambda: begin(made, "b", bare, folder, SHORT, *ours),
        }
        ways["replica"]()  # the first start of all reads vLLM itself from the disk
        for round_ in range(rounds):
            found = {}
            for name in turn(ways, round_):
                found[name] = ways[name]()
                if name == "pulled":
                    await made.evict(artifact, "b")
            samples.add(what, flatten(found, "disk_cold"))
    samples.tell(what, bytes=size_bytes(model))


async def prompt(folder: Path, rounds: int, samples: Samples) -> None:
    """The same with a long prompt that an engine of another node has computed before."""
    import lab_cluster
    import vllm_kv

    model = models.smollm2_model()
    if model is None:
        report("prompt", skipped="no SmolLM2: scripts/engines --smollm2")
        return
    seed = random.randrange(1 << 20)  # runs that share a file of samples have their own prompts
    prompts = [vllm_kv.prompt(MIDDLE, seed + round_) for round_ in range(rounds)]
    async with lab_cluster.cluster("a", "b", rate=None) as made:
        made.start("a", "b", dram_bytes=2 << 30, TENSORCAST_KV_BYTES=str(1 << 30))
        artifact, bare = put(made, model, folder)
        ours = (*loader_flags(artifact), *vllm_kv.connector())
        with serving(made, "a", bare, folder, *ours) as one:
            for ids in prompts:
                one.generate(ids, 1)
            await asyncio.sleep(1.0)  # the last blocks are being saved
        for round_, ids in enumerate(prompts):

            def cold(ids: list[int] = ids) -> Sample:
                drop_cache(model)
                return begin(made, "b", model, folder, ids)

            ways: dict[str, Callable[[], Sample]] = {
                "cold": cold,
                "warm": lambda ids=ids: begin(made, "b", model, folder, ids),
                "shared": lambda ids=ids: begin(made, "b", bare, folder, ids, *ours),
            }
            found = {name: ways[name]() for name in turn(ways, round_)}
            await made.evict(artifact, "b")
            assert len({one["token"] for one in found.values()}) == 1, "other tokens"
            both = flatten(found, "cold")
            both["shared_better_than_warm"] = 1 - both["shared_total_s"] / both["warm_total_s"]
            samples.add("prompt", both)
    samples.tell("prompt", model=model.name, tokens=MIDDLE)


def put(made, model: Path, folder: Path) -> tuple[str, Path]:
    """Puts a model on node `a`: its id, and a folder with its small files only."""
    from tensorcast.client import connect

    with connect(context_of(made, "a")) as client:
        artifact = client.put(model).id
        client.write_files(artifact, folder / "bare")
    return artifact, folder / "bare"


def loader_flags(artifact: str) -> tuple[str, ...]:
    extra = json.dumps({"artifact": artifact, "fallback": False})
    return ("--load-format", "tensorcast", "--model-loader-extra-config", extra)


def turn(ways: dict[str, Callable[[], Sample]], round_: int) -> list[str]:
    """The ways, beginning with another one in each round."""
    names = list(ways)
    return names[round_ % len(names) :] + names[: round_ % len(names)]


def begin(made, host: str, model: Path, folder: Path, ids: str | list[int], *flags: str) -> Sample:
    """Starts an engine on a host, asks it once and ends it."""
    with serving(made, host, model, folder, *flags) as one:
        found = one.generate(ids, 1)
        total_s = time.monotonic() - one.started_at
        loading_s = float(LOADING.findall(one.log_text())[-1])
    return {
        "total_s": total_s,
        "loading_s": loading_s,
        "ttft_s": found.ttft_s,
        "token": found.tokens[0],
    }


@contextmanager
def serving(made, host: str, model: Path, folder: Path, *flags: str) -> Iterator[engine.Engine]:
    """An engine on a host, which is asked from here."""
    from vllm_kv import Relay

    one = engine.launch(
        model,
        folder / host,
        *flags,
        env=environ_of(made, host),
        prefix=made.lab.enter(host),
    )
    relay = Relay(made.lab.namespace(host), int(one.url.rpartition(":")[2]))
    one.url = f"http://127.0.0.1:{relay.port}"
    try:
        yield one.wait_ready()
    finally:
        one.stop()
        relay.close()


def flatten(found: dict[str, Sample], base: str) -> Sample:
    """One round: all times of all ways, and how much better each is than the first."""
    flat = {
        f"{name}_{field}": value
        for name, sample in found.items()
        for field, value in sample.items()
        if field != "token"
    }
    for name, sample in found.items():
        if name != base:
            flat[f"{name}_better"] = 1 - sample["total_s"] / found[base]["total_s"]
    return flat


WORKS = {"start": start, "first": first, "prompt": prompt}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=WORKS)
    parser.add_argument("--samples", type=Path, help="where rounds are kept and added")
    parser.add_argument("--loader", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.loader:
        serve_loads(*options.loader)
        return
    import netlab

    why = netlab.missing() if engine.PYTHON.exists() else "no engine here: run scripts/engines"
    if why is not None:
        sys.exit(f"Nothing is measured: {why}.")
    with tempfile.TemporaryDirectory(prefix="tc-vllm-scale-") as folder:
        for name, work in WORKS.items():
            if options.only in (None, name):
                asyncio.run(work(Path(folder), options.rounds, Samples(options.samples)))


if __name__ == "__main__":
    main()
