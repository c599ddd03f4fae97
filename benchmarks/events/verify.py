"""`PYTHONPATH=benchmarks python -m events.verify [--events N] [--rounds N]`: how fast the record is
verified, by as many processes as there are CPUs, as `tcctl audit verify` has it done: read from a
Postgres of its own by COPY, hashed, columns compared. One JSON object a line. The history is
written by COPY, outside the time; the migration of an older database makes its chain.

With `--writes` instead what the chain costs when events are written: the transactions of the
persister (without its fold), with and without the chain, in turns; a trigger keeps its rows out.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

import asyncpg

from events.stories import ACTOR, EPOCH, NODE, artifact_of
from servers import PostgresServer
from tensorcast.controlplane.services.verifiers import Verifiers
from tensorcast.controlplane.settings import PARTITION_EVENTS
from tensorcast.controlplane.store.engine import make_engine
from tensorcast.controlplane.store.migrate import HEAD, migrate, run
from tensorcast.controlplane.store.partitions import make_room
from tensorcast.controlplane.store.rows import Row, event_row, read_event
from tensorcast.controlplane.store.tables import events
from tensorcast.controlplane.store.write import CURSOR, Batch, Position, load_position, write_batch
from tensorcast.log.identity import new_event_id
from tensorcast.log.port import Stored
from tensorcast.schema.api_audit import SPAN_EVENTS_MAX, VerifySpan
from tensorcast.schema.chain import GENESIS, HASH_BYTES, chain_events
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.codec import encode
from tensorcast.schema.envelope import Draft
from tensorcast.schema.events import ReplicaReady
from tensorcast.schema.ids import Seq, Tier, replica_id
from tensorcast.schema.subjects import subject_of

BEFORE_THE_CHAIN = "0007"
WITH_THE_CHAIN = "0008"
BATCH = 10_000
WRITTEN = 1000
WITHOUT_CHAIN = """
CREATE FUNCTION leave_out() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER without_chain BEFORE INSERT ON chain FOR EACH ROW EXECUTE FUNCTION leave_out();
"""
BEGIN = datetime(2030, 1, 1, tzinfo=UTC)


def rows_of(first: int, last: int) -> Iterator[Row]:
    """Rows of events as movers write them, without the fold."""
    view = ClusterView()
    for seq in range(first, last + 1):
        artifact = artifact_of(f"a{seq % 1000}")
        event = ReplicaReady(
            replica=replica_id(artifact, NODE, Tier.DRAM),
            artifact=artifact,
            node=NODE,
            tier=Tier.DRAM,
            epoch=EPOCH,
            chunks_total=4,
        )
        at = BEGIN + timedelta(milliseconds=seq)
        payload = encode(
            Draft(id=new_event_id(), at=at, actor=ACTOR, event=event, cause=new_event_id())
        )
        stored = Stored(Seq(seq), subject_of("bench", event), payload)
        yield event_row(1, stored, read_event(stored, at), view)


async def fill(url: str, count: int) -> None:
    """Writes the history, and its place."""
    engine = make_engine(url, name="bench", pooled=False)
    async with engine.begin() as making:
        await make_room(making, CURSOR, 1, count, PARTITION_EVENTS)
    await engine.dispose()
    connection = await asyncpg.connect(url)
    columns = [column.name for column in events.columns]
    indexes = await connection.fetch(
        "SELECT indexname FROM pg_indexes WHERE tablename = 'events'"
        " AND indexname LIKE 'events_by%'"
    )
    for (name,) in indexes:  # they are not read here, and take long to make
        await connection.execute(f"DROP INDEX {name}")
    for first in range(1, count + 1, BATCH):
        rows = rows_of(first, min(count, first + BATCH - 1))
        await connection.copy_records_to_table("events", columns=columns, records=rows)
    await connection.execute("VACUUM ANALYZE events")
    await connection.close()


async def make_chain(url: str) -> float:
    """The migration that hashes what is there; in seconds."""
    engine = make_engine(url, name="bench", pooled=False)
    async with engine.begin() as connection:
        await connection.run_sync(functools.partial(run, target=BEFORE_THE_CHAIN))
    began = time.perf_counter()
    async with engine.begin() as connection:
        await connection.run_sync(functools.partial(run, target=WITH_THE_CHAIN))
    elapsed = time.perf_counter() - began
    async with engine.begin() as connection:
        await connection.run_sync(functools.partial(run, target=HEAD))
    await engine.dispose()
    return elapsed


async def verify(url: str, count: int) -> float:
    """All of it, in seconds, with the start of the processes."""
    verifiers = Verifiers(url)
    began = time.perf_counter()
    for first in range(1, count + 1, SPAN_EVENTS_MAX):
        last = min(count, first + SPAN_EVENTS_MAX - 1)
        found = await verifiers.verify(VerifySpan(log_epoch=1, first=Seq(first), last=Seq(last)))
        assert found.first_bad is None, found
    elapsed = time.perf_counter() - began
    verifiers.close()
    await asyncio.sleep(0.5)  # until they have ended
    return elapsed


def children_cpu_s() -> float:
    """The CPU of processes that have ended: those that verify, without Postgres."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


async def write(
    url: str, batches: Sequence[Sequence[Row]], *, chained: bool
) -> tuple[float, float]:
    """Writes events as the persister does: the seconds, and those of this process's CPU."""
    engine = make_engine(url, name="bench", pooled=False)
    async with engine.connect() as connection:
        position, head = await load_position(connection), GENESIS
        began, cpu_s = time.perf_counter(), time.process_time()
        for rows in batches:
            hashes = bytes(HASH_BYTES * len(rows))
            if chained:
                hashes = chain_events(head, 1, ((row[1], row[3].encode(), row[-1]) for row in rows))
            head = hashes[-HASH_BYTES:]
            last = Position(1, rows[-1][1], rows[-1][2])
            batch = Batch(previous=position, last=last, events=rows, states=(), hashes=hashes)
            await write_batch(connection, batch)
            position = last
        taken = time.perf_counter() - began, time.process_time() - cpu_s
    await engine.dispose()
    return taken


async def measure_writes(make_url: Callable[[], str], count: int, rounds: int) -> None:
    rows = list(rows_of(1, count))
    batches = [rows[start : start + WRITTEN] for start in range(0, count, WRITTEN)]
    for turn in range(2 * (rounds + 1)):
        chained = turn % 4 in (1, 2)
        url = make_url()
        await migrate(url)
        if not chained:
            connection = await asyncpg.connect(url)
            await connection.execute(WITHOUT_CHAIN)
            await connection.close()
        seconds, cpu_s = await write(url, batches, chained=chained)
        if turn > 1:  # the first two warm up
            name = "written with the chain" if chained else "written without the chain"
            report(name, count, seconds, cpu_us=round(cpu_s / count * 1e6, 1))


def report(measure: str, count: int, seconds: float, **more: float) -> None:
    line = {
        "measure": measure,
        "events": count,
        "seconds": round(seconds, 3),
        "events_a_second": round(count / seconds),
        "cpus": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),
        **more,
    }
    print(json.dumps(line), flush=True)


async def measure(url: str, count: int, rounds: int) -> None:
    await migrate(url)
    await fill(url, count)
    report("chain of an older database", count, await make_chain(url))
    for _ in range(rounds):
        cpu_s = children_cpu_s()
        seconds = await verify(url, count)
        cpu_us = round((children_cpu_s() - cpu_s) / count * 1e6, 1)
        report("audit verify", count, seconds, cpu_us=cpu_us)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--writes", action="store_true", help="what the chain costs")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tensorcast-bench-", dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)  # as root, Postgres runs as another user
        server = PostgresServer(Path(folder))
        server.start()
        try:
            if arguments.writes:
                asyncio.run(
                    measure_writes(server.create_database, arguments.events, arguments.rounds)
                )
            else:
                asyncio.run(measure(server.create_database(), arguments.events, arguments.rounds))
        finally:
            server.stop()


if __name__ == "__main__":
    main()
