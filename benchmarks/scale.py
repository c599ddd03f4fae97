"""What an event costs as a cluster grows: folding it and deciding what follows, in a simulation.

scripts/bench scale [--nodes N,N,...] [--minutes M] [--rate R]

Everything but movers, wires and the clock is the code of production (controlplane/simulator). A
cluster of N nodes and 100 artifacts a node lives for M minutes under gets, puts, requests, crashes;
the load grows with N. Prints a line of JSON for each size: microseconds an event for the fold and
for all policies (mean and worst), memory, and what the simulated cluster did.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import sys
import time

from tensorcast.controlplane.simulator.workload import Load, Scenario
from tensorcast.controlplane.simulator.world import Costs, World

NODES = "10,100,1000,10000"


def main() -> int:
    """Measures one size after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", default=NODES)
    parser.add_argument("--artifacts", type=int, default=100, help="of each node")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=0.02, help="gets of a node in a second")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    for nodes in map(int, given.nodes.split(",")):
        measure(nodes, given.artifacts * nodes, given.minutes, given.rate, given.seed)
    return 0


def measure(nodes: int, artifacts: int, minutes: float, rate: float, seed: int) -> None:
    """Prints what a cluster of this size cost."""
    gc.disable()
    load = Load(
        nodes=nodes,
        artifacts=artifacts,
        hour_s=60 * minutes,
        gets=rate * nodes,
        puts=rate * nodes / 10,
        requests=rate * nodes / 40,
        crashes=nodes / 100,
    )
    world = World(seed, timer=time.perf_counter, keeps=False)
    scenario = Scenario(world, load)
    began_s = time.perf_counter()
    scenario.prepare()
    world.agenda.run(world.agenda.now_s + 10)
    prepared, world.costs = world.costs, Costs()
    prepared_s = time.perf_counter() - began_s
    measures = scenario.run()
    total_s = time.perf_counter() - began_s
    costs = world.costs
    line = {
        "nodes": nodes,
        "artifacts": len(scenario.artifacts),
        "minutes": minutes,
        "events": prepared.events + costs.events,
        "took_s": round(total_s, 1),
        "prepare_s": round(prepared_s, 1),
        "fold_us": round(1e6 * costs.fold_s / costs.events, 1),
        "decide_us": round(1e6 * costs.decide_s / costs.events, 1),
        "decide_worst_ms": round(1e3 * costs.worst_s, 1),
        "memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "operations": measures.operations,
        "failures": measures.failures,
        "hit_ratio": round(measures.hit_ratio or 0.0, 3),
        "evictions": measures.evictions,
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    sys.exit(main())
