"""Roll-outs of weights over a network of limited links: from `publish` to the last engine's change.

    python benchmarks/rollouts.py [--mib 256] [--versions 20] [--engines 8] [--rate 1gbit]

The trainer's node and each engine's node are network namespaces with a card of their own and a real
mover (tests/netlab.py; root only); NATS, Postgres and the control plane are beside them. Engines
are processes with `engines/receiving.py`. Each version is published (`client.publish`) and rolled
out (`client.roll_out`, all at once); the next one follows when this one is done and every engine
has compared all bytes that it serves with what the version must be. Prints one JSON object a line:

* `chain`: one transfer of as many bytes to all nodes, by `client.replicate`, before and after.
* `rollout`: seconds from the beginning of `publish` until the last engine serves, by the record of
  the engines; `limit_s` is 1.3 chain transfers and 100 ms. The first versions do not count: memory
  that was never touched is slow. `skipped` and `torn` must be 0.
* `each`: every one of them, with its parts: until the plan is submitted (`publish`, mostly), and
  the steps of the plan; how often operations were `tried` at most.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import torch

import netlab
from controlplanes import CLUSTER
from lab_cluster import Cluster, cluster
from servers import PostgresServer
from tensorcast.client import AsyncClient, Context, NodeContext, RolloutLimits, connect
from tensorcast.client import connect_async as connect_client
from tensorcast.engines.presence import Presence
from tensorcast.engines.receiving import Receiver

MIB = 1 << 20
NAME = "policy"
TRAINER = "trainer"
SERVICES = "persister,scheduler,timers,api"
WAIT_S = 120.0
PIECE = 1 << 17
WARM_UP = 3
FACTOR, SLACK_S = 1.3, 0.1


def make(mib: int, version: int) -> torch.Tensor:
    """The weights of a version: no two of them have a number in common at any place."""
    return torch.arange(mib * MIB // 8, dtype=torch.int64) * 1000 + version


def is_whole(weights: torch.Tensor, version: int) -> bool:
    """Whether every byte is of this version."""
    for start in range(0, len(weights), PIECE):
        piece = weights[start : start + PIECE]
        wanted = torch.arange(start, start + len(piece), dtype=torch.int64) * 1000 + version
        if not torch.equal(piece, wanted):
            return False
    return True


# ---- an engine, as a process on its host -------------------------------------------------------


def serve(engine: str, context: Context) -> None:
    """Answers roll-outs, and compares what it serves when the trainer asks."""
    torch.set_num_threads(1)
    model: dict[str, torch.Tensor] = {}

    def load(tensors: Mapping[str, torch.Tensor]) -> None:
        model.clear()
        model.update(tensors)

    with (
        connect(context) as client,
        Presence(context, kind="bench", engine=engine, life=str(os.getpid()), node=engine) as told,
    ):
        calls = client.calls(engine)
        receiver = Receiver(client, told, load)
        receiver.begin(NAME)
        print("ready", flush=True)
        for call in calls:
            if receiver.answer(call):
                continue
            version = int(receiver.version.rpartition("@")[2])
            call.answer({"version": version, "whole": is_whole(model["w"], version)})


@contextmanager
def engines(made: Cluster, names: Sequence[str]) -> Iterator[None]:
    """One on each of these hosts, all of them serving."""
    processes = []
    try:
        for name in names:
            command = [*made.lab.enter(name), sys.executable, __file__, "--serve", name]
            command += ["--socket", str(made.movers[name].socket), "--nats", made.nats_url]
            processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def at(host: str, path: str, nats_url: str) -> Context:
    """The context of a program on a host."""
    nodes = {host: NodeContext(socket=path)}
    return Context(cluster=CLUSTER, nats_url=nats_url, nodes=nodes, default_node=host)


# ---- the trainer -------------------------------------------------------------------------------


async def transfer(client: AsyncClient, mib: int, number: int, hosts: Sequence[str]) -> float:
    """The seconds that one chain transfer of as many bytes takes."""
    artifact = await client.put({"w": make(mib, -number)}, key=f"chain@{number}")
    began = time.perf_counter()
    await (await client.replicate(artifact, to=list(hosts))).wait(WAIT_S)
    took = time.perf_counter() - began
    await client.api.remove_artifact(artifact, force=True)
    return took


async def roll_out(
    client: AsyncClient, mib: int, number: int, hosts: Sequence[str]
) -> dict[str, float]:
    """The seconds from the beginning of `publish` until the last engine serves the version, and
    those of its parts."""
    weights = {"w": make(mib, number)}
    began = time.time()
    version = await client.publish(NAME, weights, point=False)
    run = await client.roll_out(version, limits=RolloutLimits(check=False))
    await run.wait(WAIT_S)
    served = {one.engine: one for one in await client.engines() if one.engine in hosts}
    assert {one.version for one in served.values()} == {version}
    last = max(one.since.timestamp() for one in served.values() if one.since is not None)
    parts = {"all": last - began, "publish": run.info.submitted_at.timestamp() - began}
    for name in ("prefetch", "stage", "switch"):
        step = run.steps[name]
        assert step.started_at is not None
        assert step.ended_at is not None
        parts[name] = (step.ended_at - step.started_at).total_seconds()
    operations = await client.api.operations(limit=len(hosts))
    parts["tried"] = max(one.attempt for one in operations)
    return {name: round(took, 3) for name, took in parts.items()}


async def check(client: AsyncClient, number: int, hosts: Sequence[str]) -> int:
    """How many engines do not serve exactly this version."""
    from tensorcast.client import Plan

    plan = Plan("check", at_once=len(hosts))
    returns = {"version": "integer", "whole": "boolean"}
    for host in hosts:
        plan.call(host, engine=host, verb="check", returns=returns)
    run = await (await client.apply(plan)).wait(WAIT_S)
    said = [step.outputs for step in run.info.steps]
    return sum(one != {"version": number, "whole": True} for one in said)


async def run(mib: int, versions: int, count: int, rate: str, url: str) -> bool:
    """All of it; whether it was within its limit."""
    hosts = [f"e{number}" for number in range(1, count + 1)]
    async with cluster(TRAINER, *hosts, rate=rate, services=SERVICES, postgres_url=url) as made:
        made.start(TRAINER, *hosts, dram_bytes=4 * (mib + 16) * MIB)
        context = at(TRAINER, str(made.movers[TRAINER].socket), made.nats_url)
        async with connect_client(context) as client:
            await client.api.enable_policy("keep-last", {"versions": 2})
            await client.publish(NAME, {"w": make(mib, 1)})
            await (await client.replicate(NAME, to=hosts)).wait(WAIT_S)
            chains = [await transfer(client, mib, n, hosts) for n in (1, 2, 3)]
            with engines(made, hosts):
                each, torn = [], 0
                for number in range(2, versions + WARM_UP + 2):
                    each.append(await roll_out(client, mib, number, hosts))
                    tell("each", version=number, **each[-1])
                    torn += await check(client, number, hosts)
                chains += [await transfer(client, mib, n, hosts) for n in (4, 5)]
                skipped = await count_skipped(client, versions + WARM_UP, hosts)
    return report(mib, chains, each[WARM_UP:], skipped, torn)


def tell(what: str, **more: object) -> None:
    """One line of the result."""
    print(json.dumps({"what": what, **more}), flush=True)


async def count_skipped(client: AsyncClient, versions: int, hosts: Sequence[str]) -> int:
    """How many engines did not serve every version in its turn, by the log."""
    wanted = [f"{NAME}@{number}" for number in range(1, versions + 2)]
    served = [[one.version for one in (await client.engine(host)).served] for host in hosts]
    return sum(one != wanted for one in served)


def report(
    mib: int,
    chains: Sequence[float],
    each: Sequence[Mapping[str, float]],
    skipped: int,
    torn: int,
) -> bool:
    """Prints all lines."""
    took = [one["all"] for one in each]
    chain = statistics.median(chains)
    limit = FACTOR * chain + SLACK_S
    p95 = statistics.quantiles(took, n=20, method="inclusive")[-1] if len(took) > 1 else took[0]
    load = round(os.getloadavg()[0], 1)
    tell("chain", mib=mib, s=[round(one, 3) for one in chains])
    told = {"median_s": round(statistics.median(took), 3), "p95_s": round(p95, 3)}
    told |= {"limit_s": round(limit, 3), "ratio": round(p95 / chain, 3)}
    tell("rollout", mib=mib, versions=len(took), **told)
    tell("content", skipped=skipped, torn=torn, load=load)
    return p95 <= limit and not skipped and not torn


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--versions", type=int, default=20)
    parser.add_argument("--engines", type=int, default=8)
    parser.add_argument("--rate", default="1gbit", help="of each link, in gbit")
    for hidden in ("--serve", "--socket", "--nats"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve:
        serve(chosen.serve, at(chosen.serve, chosen.socket, chosen.nats))
        return 0
    if (reason := netlab.missing()) is not None:
        print(f"Nothing is measured: {reason}.", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="tc-rollouts-") as folder:
        Path(folder).chmod(0o755)
        (Path(folder) / "postgres").mkdir(mode=0o755)
        postgres = PostgresServer(Path(folder) / "postgres")
        postgres.start()
        try:
            url = postgres.create_database()
            work = run(chosen.mib, chosen.versions, chosen.engines, chosen.rate, url)
            return 0 if asyncio.run(work) else 1
        finally:
            postgres.stop()


if __name__ == "__main__":
    sys.exit(main())
