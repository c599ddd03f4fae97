"""How long a signal takes from `emit` to a reader, at a steady rate.

    python benchmarks/signal_latency.py [--rate 1000] [--seconds 20]

Real NATS, Postgres and control plane on this machine, in folders of their own (tests/servers.py);
the emitter and the reader are one process with two clients. Each signal carries the moment at which
its `emit` began; an open loop emits whatever happens to those before it, so a slow moment is seen
by all that follow. Prints one line of JSON: milliseconds, median and 99th percentile, from the
beginning of `emit` to the reader, and to the answer of `emit` (the signal is in the log then).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from controlplanes import CLUSTER, ControlPlane
from servers import NatsServer, PostgresServer
from tensorcast.client import AsyncClient, Context, connect_async

TOPIC = "bench.latency"
WARM_UP = 500


async def measure(context: Context, rate: int, seconds: float) -> dict[str, object]:
    """Emits for so long at this rate, and reads."""
    took_ms: list[float] = []
    answered_ms: list[float] = []
    count = int(rate * seconds) + WARM_UP
    async with connect_async(context) as emitter, connect_async(context) as reader:

        async def read() -> None:
            async with reader.signals(TOPIC) as signals:
                ready.set()
                while len(took_ms) < count:
                    signal = await signals.next(60.0)
                    assert signal is not None, f"signal {len(took_ms)} is missing"
                    sent_s = signal.data["at"]
                    assert isinstance(sent_s, float)
                    took_ms.append(1e3 * (time.perf_counter() - sent_s))

        ready = asyncio.Event()
        reading = asyncio.create_task(read())
        await ready.wait()
        begin_s = time.perf_counter()
        sending = []
        for number in range(count):
            delay_s = begin_s + number / rate - time.perf_counter()
            if delay_s > 0:
                await asyncio.sleep(delay_s)
            sending.append(asyncio.create_task(_emit(emitter, number, answered_ms)))
        await asyncio.gather(*sending)
        await reading
    return {
        "rate": rate,
        "signals": count - WARM_UP,
        "receive_ms": _percentiles(took_ms[WARM_UP:]),
        "answer_ms": _percentiles(answered_ms[WARM_UP:]),
        "load": os.getloadavg()[0],
    }


async def _emit(client: AsyncClient, number: int, answered_ms: list[float]) -> None:
    began_s = time.perf_counter()
    await client.emit(TOPIC, {"at": began_s, "n": number})
    answered_ms.append(1e3 * (time.perf_counter() - began_s))


def _percentiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        name: round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)
        for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
    }


async def run(rate: int, seconds: float) -> None:
    """Starts all that is needed, measures, and takes it away."""
    folder = Path(tempfile.mkdtemp(prefix="tensorcast-signals-"))
    folder.chmod(0o755)
    (folder / "nats").mkdir()
    (folder / "postgres").mkdir(mode=0o755)
    nats, postgres = NatsServer(folder / "nats"), PostgresServer(folder / "postgres")
    plane: ControlPlane | None = None
    try:
        nats.start()
        postgres.start()
        plane = ControlPlane(folder, nats.url, postgres.create_database())
        await plane.start()
        context = Context(cluster=CLUSTER, nats_url=nats.url)
        print(json.dumps(await measure(context, rate, seconds)), flush=True)
    finally:
        if plane is not None:
            plane.end()
        postgres.stop()
        nats.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    asyncio.run(run(given.rate, given.seconds))
