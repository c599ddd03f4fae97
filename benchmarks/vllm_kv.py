"""What sharing KV blocks is worth to real vLLM engines, and what it costs.

    python benchmarks/vllm_kv.py [--rounds 7] [--only NAME]
    (needs `scripts/engines [--smollm2] [--lmcache]`)

Prints one JSON object a line; times in seconds, to the first token, medians of rounds in which all
ways take turns. Tokens are compared each time.

* `node`: a prompt of 3,500 tokens, tiny Llama: computed (`miss`), computed by another engine of the
  node (`external`), and in the engine's own cache (`local`).
* `lmcache`: the same beside two engines with LMCache (its `LMCacheMPConnector` and server: its
other connector has nothing for a CPU), in the same rounds; its chunks are as long as the engine's
blocks.
* `nodes`: 2,000 tokens, SmolLM2-135M: the same with the other engine on another node, behind a link
of its own (network namespaces, root only), and from the same node.
* `save`: prompts of 1,000 tokens and 32 generated ones, eight at once, with and without the
connector, on a node whose room for blocks is full; CPU seconds of the engine's processes, and of
all others of the cluster. `again` is a second engine without the connector: what differs by chance.

What failures cost is measured by `vllm_faults.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "engines"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import engine
import lab_cluster
import models
import netlab
import vllm_lmcache
from cluster import Cluster, running_cluster

LONG, MIDDLE, SHORT = 3500, 2000, 1000
TOKENS = 16
AT_ONCE = 8
HITS = "vllm:external_prefix_cache_hits_total"
SAVE_BYTES = 192 << 20
"""The room for blocks in `save`: it is full after a few rounds, as a node is in the end."""
BLOCK_BYTES = 512 << 10
SAVED = "vllm:tensorcast_kv_saved_blocks_total"
STARTS = 3
ROUNDS_MAX = 1000
Spent = dict[str, dict[str, list[float]]]


def report(what: str, **more: object) -> None:
    """One line of the result."""
    print(json.dumps({"what": what, **more, "load": round(os.getloadavg()[0], 1)}), flush=True)


def median(times: Sequence[float]) -> float:
    return round(statistics.median(times), 4)


def connector(**extra: object) -> tuple[str, ...]:
    """The flags that turn the connector on."""
    config = {
        "kv_connector": "TensorCastConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": extra,
    }
    return ("--kv-transfer-config", json.dumps(config))


def prompt(length: int, seed: int) -> list[int]:
    chosen = random.Random(seed)
    return [chosen.randrange(5, 4000) for _ in range(length)]


def context_of(cluster: Cluster) -> dict[str, str]:
    return {name: v for name, v in cluster.env.items() if name.startswith("TENSORCAST_")}


@contextmanager
def started(*starts: Callable[[], engine.Engine]) -> Iterator[list[engine.Engine]]:
    """Engines, started at the same time."""
    found: list[engine.Engine] = []
    try:
        found.extend(start() for start in starts)
        yield [one.wait_ready() for one in found]
    finally:
        for one in found:
            one.stop()


def compare(
    rounds: int,
    length: int,
    ways: dict[str, Callable[[list[int]], engine.Completion]],
    settle_s: float,
    seed: int,
) -> dict[str, list[float]]:
    """Times to the first token of each way, which take turns with a new prompt in each round."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(rounds + 1):  # the first warms up
        ids, tokens = prompt(length, seed + round_), None
        for name, way in ways.items():
            found = way(ids)
            assert tokens in (None, found.tokens), f"{name}: other tokens"
            tokens = found.tokens
            if round_:
                times[name].append(found.ttft_s)
            time.sleep(settle_s)
    return times


def tell_times(what: str, times: dict[str, list[float]], **more: object) -> None:
    local, miss = times["local"], times["miss"]
    report(
        what,
        **{name: median(found) for name, found in times.items()},
        external_to_local=median([a / b for a, b in zip(times["external"], local, strict=True)]),
        under_miss=median([1 - a / b for a, b in zip(times["external"], miss, strict=True)]),
        rounds=len(local),
        **more,
    )


def node(folder: Path, rounds: int) -> None:
    """Two engines of one node."""
    with running_cluster(folder / "cluster", 1) as cluster:
        env = context_of(cluster)
        starts = [
            lambda name=name: engine.launch(
                models.tiny_model(), folder / name, *connector(), env=env
            )
            for name in ("a", "b")
        ]
        with started(*starts) as (one, other):
            ways = {
                "miss": lambda ids: one.generate(ids, TOKENS),
                "external": lambda ids: other.generate(ids, TOKENS),
                "local": lambda ids: other.generate(ids, TOKENS),
            }
            tell_times("node", compare(rounds, LONG, ways, 0.3, 1000), tokens=LONG)


def lmcache(folder: Path, rounds: int) -> None:
    """Two engines with our connector and two with LMCache's, on one node."""
    if not vllm_lmcache.FOLDER.exists():
        report("lmcache", skipped="no LMCache: scripts/engines --lmcache")
        return
    folder.mkdir()
    with running_cluster(folder / "cluster", 1) as cluster, vllm_lmcache.server(folder) as port:
        theirs = vllm_lmcache.connector(port)
        starts = [
            lambda name=name, flags=flags, env=env: engine.launch(
                models.tiny_model(), folder / name, *flags, env=env
            )
            for name, flags, env in (
                ("a", connector(), context_of(cluster)),
                ("b", connector(), context_of(cluster)),
                ("c", theirs, vllm_lmcache.ENV),
                ("d", theirs, vllm_lmcache.ENV),
            )
        ]
        with started(*starts) as (a, b, c, d):
            ways = {
                "miss": lambda ids: a.generate(ids, TOKENS),
                "lmcache_miss": lambda ids: c.generate(ids, TOKENS),
                "external": lambda ids: b.generate(ids, TOKENS),
                "lmcache_external": lambda ids: d.generate(ids, TOKENS),
                "local": lambda ids: b.generate(ids, TOKENS),
                "lmcache_local": lambda ids: d.generate(ids, TOKENS),
            }
            times = compare(rounds, LONG, ways, 1.0, 1500)
            hits = [one.metrics().total(HITS) / (rounds + 1) for one in (b, d)]
        ratio = median(
            [a / b for a, b in zip(times["lmcache_external"], times["external"], strict=True)]
        )
        tell_times("lmcache", times, tokens=LONG, hit_tokens=hits, lmcache_to_external=ratio)


def save(folder: Path, rounds: int) -> None:
    """The same load with and without the connector, and once more without, for the noise; several
    starts of the engines, because two processes that do the same may differ by some percent."""
    room = str(SAVE_BYTES)
    spent: Spent = {}
    stored = 0.0
    with running_cluster(folder / "cluster", 1, TENSORCAST_KV_BYTES=room) as cluster:
        env, tiny = context_of(cluster), models.tiny_model()
        starts = {
            "with": lambda: engine.launch(tiny, folder / "with", *connector(), env=env),
            "without": lambda: engine.launch(tiny, folder / "without"),
            "again": lambda: engine.launch(tiny, folder / "again"),
        }
        status = json.loads(cluster.tcctl("status", "-o", "json", code=None).out)
        main = next(one["pid"] for one in status["services"] if one["name"] == "supervisor")
        ours = family(int(main))
        for number in range(STARTS):
            with started(*starts.values()) as found:
                engines = dict(zip(starts, found, strict=True))
                fill = SAVE_BYTES // BLOCK_BYTES // 64 + 1 if not number else 0
                for round_ in range(fill):  # from now on the node is full
                    ask_all(engines["with"], round_prompts(4000 + round_), 32)
                take_turns(rounds, engines, ours, number, spent)
                stored += engines["with"].metrics().total(SAVED)
    for name, one in spent.items():
        report("save", way=name, **{what: median(values) for what, values in one.items()})
    for name in ("with", "again"):
        lost = {
            what: median([a / b - 1 for a, b in zip(spent[name][what], values, strict=True)])
            for what, values in spent["without"].items()
            if what != "layer_cpu_s"
        }
        counted = {"saved_blocks": stored, "starts": STARTS, "rounds": STARTS * rounds}
        report("save", way=name, against="without", **lost, **counted)


def round_prompts(number: int) -> list[list[int]]:
    return [prompt(SHORT, number * AT_ONCE + n) for n in range(AT_ONCE)]


def take_turns(
    rounds: int, engines: dict[str, engine.Engine], layer: list[int], start: int, spent: Spent
) -> None:
    """Adds to `spent` of each way, for each round: seconds, CPU seconds of the engine, and of the
    layer."""
    order = list(engines)
    for round_ in range(rounds + 1):  # the first warms up
        for name in order:
            one, prompts = engines[name], round_prompts(start * ROUNDS_MAX + round_)
            processes = family(one.pid)
            began, core_s, layer_s = time.monotonic(), cpu_s(processes), cpu_s(layer)
            ask_all(one, prompts, 32)
            took = {
                "s": time.monotonic() - began,
                "engine_cpu_s": cpu_s(processes) - core_s,
                "layer_cpu_s": cpu_s(layer) - layer_s,
            }
            for what, seconds in took.items() if round_ else ():
                spent.setdefault(name, {}).setdefault(what, []).append(seconds)
        order = [*order[1:], order[0]]


def family(process: int) -> list[int]:
    """A process and all that it started."""
    found = [process]
    for thread in Path(f"/proc/{process}/task").iterdir():
        for child in (thread / "children").read_text().split():
            found += family(int(child))
    return found


def cpu_s(processes: Sequence[int]) -> float:
    """What all threads of some processes have computed."""
    total = 0.0
    for process in processes:
        for thread in Path(f"/proc/{process}/task").iterdir():
            total += int((thread / "schedstat").read_text().split()[0]) / 1e9
    return total


def ask_all(
    one: engine.Engine, prompts: list[list[int]], tokens: int
) -> list[engine.Completion | None]:
    """All at once; None for one that failed."""
    found: list[engine.Completion | None] = [None] * len(prompts)

    def ask(n: int) -> None:
        found[n] = one.generate(prompts[n], tokens)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


# ---- several nodes -----------------------------------------------------------------------------


class Relay:
    """Carries connections from a port of the machine to one of a host of the lab."""

    def __init__(self, namespace: str, port: int) -> None:
        self._namespace, self._port = namespace, port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def _connect(self) -> socket.socket | None:
        try:
            return socket.create_connection(("127.0.0.1", self._port))
        except OSError:
            return None

    def _serve(self) -> None:
        while True:
            try:
                accepted, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(accepted,), daemon=True).start()

    def _carry(self, accepted: socket.socket) -> None:
        inside = netlab._inside(self._namespace, self._connect)
        if inside is None:  # the engine is not up yet
            accepted.close()
            return
        for one, other in ((accepted, inside), (inside, accepted)):
            threading.Thread(target=pour, args=(one, other), daemon=True).start()


def pour(one: socket.socket, other: socket.socket) -> None:
    """Everything from one to the other, until it ends."""
    try:
        while piece := one.recv(1 << 16):
            other.sendall(piece)
        other.shutdown(socket.SHUT_WR)
    except OSError:
        other.close()


async def nodes(folder: Path, rounds: int) -> None:
    """Two engines on two hosts of the lab."""
    model = models.smollm2_model()
    if model is None or (why := netlab.missing()) is not None:
        report("nodes", skipped="no SmolLM2: scripts/engines --smollm2" if model is None else why)
        return
    async with lab_cluster.cluster("a", "b", rate=None) as made:
        made.start("a", "b", dram_bytes=4 << 30, TENSORCAST_KV_BYTES=str(2 << 30))
        with ExitStack() as stack:
            one, other = stack.enter_context(lab_engines(made, model, folder, stack))

            def same_node(ids: list[int]) -> engine.Completion:
                while other.ask("/reset_prefix_cache", method="POST") != {"success": True}:
                    time.sleep(0.02)  # what came from the other node is being kept
                return other.generate(ids, TOKENS)

            ways = {
                "miss": lambda ids: one.generate(ids, TOKENS),
                "external": lambda ids: other.generate(ids, TOKENS),
                "same_node": same_node,
                "local": lambda ids: other.generate(ids, TOKENS),
            }
            for rate in (None, "1gbit"):
                for host in ("a", "b"):
                    made.lab.limit(host, rate)
                times = compare(rounds, MIDDLE, ways, 0.5, 2000 if rate else 3000)
                pairs = zip(times["external"], times["same_node"], strict=True)
                ratio = median([a / b for a, b in pairs])
                tell_times("nodes", times, tokens=MIDDLE, rate=rate, external_to_same_node=ratio)


@contextmanager
def lab_engines(
    made: lab_cluster.Cluster, model: Path, folder: Path, stack: ExitStack
) -> Iterator[list[engine.Engine]]:
    """An engine on each host, asked from here."""
    starts = []
    for host, mover in made.movers.items():
        env = {
            "TENSORCAST_CLUSTER": "test",
            "TENSORCAST_NODE": host,
            "TENSORCAST_SOCKET": str(mover.socket),
            "TENSORCAST_NATS_URL": made.nats_url,
        }
        prefix = made.lab.enter(host)
        starts.append(
            lambda host=host, env=env, prefix=prefix: engine.launch(
                model, folder / host, *connector(), env=env, prefix=prefix
            )
        )
    found: list[engine.Engine] = []
    try:
        for start, host in zip(starts, made.movers, strict=True):
            one = start()
            relay = Relay(made.lab.namespace(host), int(one.url.rpartition(":")[2]))
            stack.callback(relay.close)
            one.url = f"http://127.0.0.1:{relay.port}"
            found.append(one)
        yield [one.wait_ready() for one in found]
    finally:
        for one in found:
            one.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=("node", "lmcache", "nodes", "save"))
    options = parser.parse_args()
    if not engine.PYTHON.exists():
        sys.exit("There is no engine here: run scripts/engines first.")
    with tempfile.TemporaryDirectory(prefix="tc-vllm-kv-") as folder:
        for scenario in (node, lmcache, save, nodes):
            if options.only in (None, scenario.__name__):
                done = scenario(Path(folder) / scenario.__name__, options.rounds)
                if done is not None:
                    asyncio.run(done)


if __name__ == "__main__":
    main()
