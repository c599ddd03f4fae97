"""What a failure of the layer costs requests of real vLLM engines: time only, and how much.

    python benchmarks/vllm_faults.py [--faults 50] [--seed N]   (needs `scripts/engines`, and root)

Two engines on two nodes (network namespaces, a link of 1 Gbit/s), tiny Llama. Each fault strikes
one of them under eight requests at once, five of which the other engine has computed before (they
are loaded). It strikes while a load is under way, or (each second one of a kind) when all loads
have ended, some blocks were saved, and others are being computed and saved. What it struck is
looked at again afterwards: one that came too late, when nothing was under way, does not count and
is repeated. Then it is mended. Tokens are compared with those of an engine without the connector,
which computes the same requests, all at once, before each fault and after it (the slower time
counts, because a machine that others use too is not always as fast).

Prints the seed, one JSON object for each fault, and one for each kind: `struck` is what was under
way, `worst_s` the slowest of the eight requests, `computed_s` that without a store, `beyond_s` the
difference; `repeated` faults struck nothing. Exits with 1 when a request was lost, had wrong
tokens, or took BEYOND_S_MAX more than to compute it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import secrets
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "engines"))

import engine
import lab_cluster
import models
import netlab
from vllm_kv import ask_all, lab_engines, prompt

AT_ONCE, KNOWN, TOKENS = 8, 5, 16
LENGTHS = (300, 3000)
LOAD, SAVE, NOTHING = "load", "save", "nothing"
AFTER_S = {LOAD: 0.1, SAVE: 0.3}
"""It strikes at a random moment within so long, once what it is to strike is seen to be under
way."""
LOOK_S = 0.005
TRIES_MAX = 5
SETTLE_S = 0.5
REST_S = 2.5
"""What was broken is asked for again after two seconds."""
BEYOND_S_MAX = 2.0
SHOWN = ("load_failures", "saves_dropped", "saves_given_up", "loaded_blocks", "saved_blocks")
COUNTERS = (*SHOWN, "hit_blocks", "failed_blocks", "rejected_blocks")
Counts = dict[str, float]

Mend = Callable[[], None]


# ---- what breaks -------------------------------------------------------------------------------


def own_killed(made: lab_cluster.Cluster) -> Mend:
    """kill -9 of the mover of the engine's own node."""
    return kill(made, "b")


def own_stopped(made: lab_cluster.Cluster) -> Mend:
    """SIGSTOP: it is there, and silent."""
    pid = made.movers["b"].pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    return lambda: os.kill(pid, signal.SIGCONT)


def peer_killed(made: lab_cluster.Cluster) -> Mend:
    """kill -9 of the mover of the node that has the blocks."""
    return kill(made, "a")


def link_cut(made: lab_cluster.Cluster) -> Mend:
    """Nothing comes from the other node, and nobody says why."""
    made.lab.cut("a")
    return lambda: made.lab.mend("a")


def nats_killed(made: lab_cluster.Cluster) -> Mend:
    """kill -9 of NATS: no log, so nobody hears of new blocks."""
    made.nats.kill()
    return made.nats.start


def controlplane_killed(made: lab_cluster.Cluster) -> Mend:
    """kill -9 of the control plane."""
    made.controlplane.kill()
    return lambda: made.controlplane.launch(lab_cluster.SERVICES)


def kill(made: lab_cluster.Cluster, host: str) -> Mend:
    mover = made.movers[host]
    mover.kill()
    return mover.start


FAULTS = (own_killed, own_stopped, peer_killed, link_cut, nats_killed, controlplane_killed)


# ---- one fault ---------------------------------------------------------------------------------


@dataclass
class Engines:
    """`first` computes on node a, `second` loads and saves on node b, `alone` has no connector."""

    first: engine.Engine
    second: engine.Engine
    alone: engine.Engine

    def count(self) -> Counts:
        metrics = self.second.metrics()
        return {name: metrics.total(f"vllm:tensorcast_kv_{name}_total") for name in COUNTERS}


def loads_under_way(now: Counts) -> bool:
    """Whether blocks were found that have neither come nor failed."""
    return now["hit_blocks"] > now["loaded_blocks"] + now["failed_blocks"]


def saves_ended(now: Counts) -> float:
    return now["saved_blocks"] + now["saves_dropped"] + now["saves_given_up"]


@dataclass
class Blow:
    """A fault that strikes when it is seen that what it is to strike is under way, and a moment
    after that; in a thread of its own."""

    strike: Callable[[], Mend]
    count: Callable[[], Counts]
    before: Counts
    aim: str
    after_s: float
    mends: list[Mend] = field(default_factory=list)
    at_strike: Counts = field(default_factory=dict)
    was_in_time: bool = False
    over: threading.Event = field(default_factory=threading.Event)

    def start(self) -> threading.Thread:
        thread = threading.Thread(target=self._run)
        thread.start()
        return thread

    def _run(self) -> None:
        while not self.over.is_set() and not self._is_due(self.count()):
            time.sleep(LOOK_S)
        time.sleep(self.after_s)
        self.at_strike = self.count()
        self.was_in_time = not self.over.is_set()
        self.mends.append(self.strike())

    def _is_due(self, now: Counts) -> bool:
        if self.aim == LOAD:
            return loads_under_way(now)
        return now["saved_blocks"] > self.before["saved_blocks"] and not loads_under_way(now)

    def struck(self, after: Counts) -> str:
        """What was under way: a load, or blocks that were saved or dropped later."""
        if self.was_in_time and loads_under_way(self.at_strike):
            return LOAD
        is_save = self.was_in_time and saves_ended(after) > saves_ended(self.at_strike)
        return SAVE if is_save else NOTHING


def slowest(found: list[engine.Completion | None]) -> float:
    return max((one.total_s for one in found if one is not None), default=0.0)


def suffer(
    made: lab_cluster.Cluster,
    engines: Engines,
    fault: Callable[[lab_cluster.Cluster], Mend],
    aim: str,
    chosen: random.Random,
) -> dict[str, object]:
    """One fault under eight requests; everything works again afterwards. `aim`: what it is to
    strike."""
    prompts = [prompt(chosen.randrange(*LENGTHS), chosen.randrange(10**9)) for _ in range(AT_ONCE)]
    wanted = ask_all(engines.alone, prompts, TOKENS)
    computed_s = slowest(wanted)
    ask_all(engines.first, prompts[:KNOWN], TOKENS)
    time.sleep(SETTLE_S)
    before = engines.count()
    asked = list(zip(prompts, wanted, strict=True))
    chosen.shuffle(asked)
    after_s = chosen.uniform(0, AFTER_S[aim])
    blow = Blow(lambda: fault(made), engines.count, before, aim, after_s)
    thread = blow.start()
    found = ask_all(engines.second, [ids for ids, _ in asked], TOKENS)
    blow.over.set()
    thread.join()
    for mend in blow.mends:
        mend()
    time.sleep(REST_S)
    after = engines.count()
    engines.alone.ask("/reset_prefix_cache", method="POST")
    computed_s = max(computed_s, slowest(ask_all(engines.alone, prompts, TOKENS)))
    wrong = sum(
        one is not None and right is not None and one.tokens != right.tokens
        for one, (_, right) in zip(found, asked, strict=True)
    )
    return {
        "fault": fault.__name__,
        "struck": blow.struck(after),
        "wrong": wrong,
        "lost": found.count(None),
        "worst_s": round(slowest(found), 2),
        "computed_s": round(computed_s, 2),
        "beyond_s": round(slowest(found) - computed_s, 2),
        **{name: round(after[name] - before[name]) for name in SHOWN},
    }


def insist(
    made: lab_cluster.Cluster,
    engines: Engines,
    fault: Callable[[lab_cluster.Cluster], Mend],
    aim: str,
    chosen: random.Random,
) -> dict[str, object]:
    """As `suffer`, until it strikes something; the worst of all tries counts."""
    found = [suffer(made, engines, fault, aim, chosen)]
    while found[-1]["struck"] == NOTHING and len(found) < TRIES_MAX:
        found.append(suffer(made, engines, fault, aim, chosen))
    worst = max(found, key=lambda one: (one["lost"], one["wrong"], one["beyond_s"]))
    is_bad = worst["lost"] or worst["wrong"] or worst["beyond_s"] > BEYOND_S_MAX
    return {**(worst if is_bad else found[-1]), "repeated": len(found) - 1}


# ---- all of them -------------------------------------------------------------------------------


async def run(folder: Path, faults: int, seed: int, only: str | None) -> bool:
    """Whether all went well."""
    chosen = random.Random(seed)
    aims = (LOAD, SAVE)
    kinds = [fault for fault in FAULTS if only in (None, fault.__name__)]
    order = [(kinds[n % len(kinds)], aims[n // len(kinds) % 2]) for n in range(faults)]
    chosen.shuffle(order)
    results: list[dict[str, object]] = []
    async with lab_cluster.cluster("a", "b", rate="1gbit") as made:
        made.start("a", "b", dram_bytes=4 << 30, TENSORCAST_KV_BYTES=str(2 << 30))
        with ExitStack() as stack:
            tiny = models.tiny_model()
            first, second = stack.enter_context(lab_engines(made, tiny, folder, stack))
            alone = stack.enter_context(engine.start(tiny, folder / "alone"))
            engines = Engines(first, second, alone)
            for one in (first, second, alone):  # the first requests are slower
                ask_all(one, [prompt(500, n) for n in range(AT_ONCE)], TOKENS)
            for number, (fault, aim) in enumerate(order):
                results.append(insist(made, engines, fault, aim, chosen))
                print(json.dumps({"number": number, **results[-1]}), flush=True)
    for kind in FAULTS:
        summarise(kind.__name__, [one for one in results if one["fault"] == kind.__name__])
    summarise("all", results)
    return all(
        not one["wrong"] and not one["lost"] and one["beyond_s"] <= BEYOND_S_MAX for one in results
    )


def summarise(name: str, results: list[dict[str, object]]) -> None:
    """One line for a kind of fault."""
    if not results:
        return
    beyond = sorted(one["beyond_s"] for one in results)
    line = {
        "faults": name,
        "times": len(results),
        **{
            key: sum(one[key] for one in results)
            for key in ("wrong", "lost", "repeated", *SHOWN[:3])
        },
        "struck": {
            what: sum(one["struck"] == what for one in results) for what in (LOAD, SAVE, NOTHING)
        },
        "worst_s": max(one["worst_s"] for one in results),
        "computed_s": round(statistics.median(one["computed_s"] for one in results), 2),
        "beyond_s": {
            "median": round(statistics.median(beyond), 2),
            "90%": beyond[len(beyond) * 9 // 10],
            "most": beyond[-1],
        },
    }
    print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--faults", type=int, default=50)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    parser.add_argument("--only", choices=[fault.__name__ for fault in FAULTS])
    options = parser.parse_args()
    if not engine.PYTHON.exists():
        sys.exit("There is no engine here: run scripts/engines first.")
    if (why := netlab.missing()) is not None:
        sys.exit(why)
    print(json.dumps({"seed": options.seed, "faults": options.faults}), flush=True)
    with tempfile.TemporaryDirectory(prefix="tc-vllm-faults-") as folder:
        is_good = asyncio.run(run(Path(folder), options.faults, options.seed, options.only))
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
