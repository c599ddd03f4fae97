"""Torments a cluster under load, by seed, and proves afterwards that it kept its promises.

`scripts/test faults --seeds 5 --seconds 60` takes new seeds; `--seed N` repeats the dice of one
(what meets what in time is up to the machine). Seeds that failed are kept in
`.cache/faults/failed.txt`, with the logs of all processes beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import math
import random
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from chaos.load import CLIENTS, Client, Record, prepare, put_artifacts, write_histories
from chaos.torment import Torment
from chaos.verdict import check, settle
from chaos.world import CLUSTER, ControlPlane, World, world
from tensorcast.log.jetstream import connect_log

KEPT = Path(__file__).resolve().parents[2] / ".cache" / "faults"
READY_S_MAX = 60.0


async def torment(made: World, seed: int, seconds: float) -> tuple[list[str], str]:
    """One run in a world: everything that is wrong, and what was done, in words."""
    record, torments = Record(), Torment(made, seed)
    try:
        await prepare(made)
        await made.start()
        await _wait_until_served(made)
        load = _begin_load(made, record, seed)
        tormenting = asyncio.create_task(torments.run())
        done, _ = await asyncio.wait([*load, tormenting], timeout=seconds)
        broken = [f"the test itself broke: {task.exception()!r}" for task in done]
        await _end([tormenting])
        await torments.heal()
        await asyncio.sleep(2.0)
        await _end(load)
        found = broken or await _judge(made, record, torments)
        told = f"{sum(torments.done.values())} faults {dict(torments.done)}; {record.answers}"
        return found, f"{len(record.acknowledged)} events acknowledged; {told}"
    finally:
        torments.close()


async def _judge(made: World, record: Record, torments: Torment) -> list[str]:
    log = await connect_log(made.nats.url, CLUSTER, name="verdict")
    try:
        # A process may have ended by itself, for its supervisor to start it anew.
        reviving = asyncio.create_task(_keep_alive(torments))
        try:
            last = await settle(log, made.database)
        except TimeoutError:
            return ["the log does not come to rest in Postgres"]
        finally:
            await _end([reviving])
        return await check(log, made.database, record, last)
    finally:
        await log.aclose()


async def _keep_alive(torments: Torment) -> None:
    while True:
        await torments.heal()
        await asyncio.sleep(1.0)


def _begin_load(made: World, record: Record, seed: int) -> list[asyncio.Task[None]]:
    clients = [Client(number, made, record, seed + number) for number in range(CLIENTS)]
    work = [*(client.run() for client in clients)]
    work += [write_histories(made, record, seed), put_artifacts(made, record, seed)]
    return [asyncio.create_task(one) for one in work]


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _is_serving(plane: ControlPlane) -> bool:
    return "serving cluster" in plane.log_text()


async def _wait_until_served(made: World) -> None:
    async with asyncio.timeout(READY_S_MAX):
        while not all(map(_is_serving, made.planes)):  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.1)


def run_seed(seed: int, seconds: float) -> list[str]:
    """One world from its beginning to its end; prints what came of it."""
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="tc-faults-"))
    try:
        with world(folder) as made:
            found, told = asyncio.run(torment(made, seed, seconds))
            if found:
                _keep(seed, seconds, found, made.logs())
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    verdict = "no violation" if not found else f"VIOLATION: {'; '.join(found[:5])}"
    took_s = time.monotonic() - began
    print(f"seed {seed}, {seconds:g} s: {verdict} ({took_s:.0f} s; {told})", flush=True)
    return found


def _keep(seed: int, seconds: float, found: list[str], logs: str) -> None:
    KEPT.mkdir(parents=True, exist_ok=True)
    with (KEPT / "failed.txt").open("a") as failed:
        failed.write(f"--seed {seed} --seconds {seconds:g}  # {found[0]}\n")
    (KEPT / f"{seed}.log").write_text("\n".join(found) + "\n" + logs)


def main() -> int:
    """0: no violation. 1: there was one, its seed is kept."""
    parser = argparse.ArgumentParser(prog="scripts/test faults", description=__doc__)
    parser.add_argument("--seed", type=int, help="the first seed; by default a new one")
    parser.add_argument("--seeds", type=int, default=1, metavar="K", help="how many")
    parser.add_argument("--seconds", type=float, default=60.0, help="of torment for each seed")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin none later")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    logging.getLogger("tensorcast.client").setLevel(logging.ERROR)  # all of them wait, all the time
    first = random.SystemRandom().randrange(1 << 30) if options.seed is None else options.seed
    until = time.monotonic() + 60 * options.minutes
    clean = failed = 0
    for seed in range(first, first + options.seeds):
        if time.monotonic() > until:
            break
        print(
            f"seed {seed}; again: scripts/test faults --seed {seed} --seconds {options.seconds:g}"
        )
        sys.stdout.flush()
        if run_seed(seed, options.seconds):
            failed += 1
        else:
            clean += 1
    print(f"{clean + failed} seeds, {failed} with a violation")
    return 1 if failed else 0


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
