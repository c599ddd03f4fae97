"""A log of millions of events: how soon a control plane starts on it, and a moment of it opens.

    python benchmarks/long_log.py FOLDER --fill 10000000   writes it: NATS, Postgres, snapshots
    python benchmarks/long_log.py FOLDER --start           starts a control plane on it
    python benchmarks/long_log.py FOLDER --moments         opens moments of it, each cold
    python benchmarks/long_log.py FOLDER --archive         moves its first half into files

The history is that of `fleet_history.py`. It is written as the services write it, but faster: by
COPY, without the indexes that no question here looks at, and synced at the end. Ten million events
take 20 GB of disk and some ten minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import servers
from fleet_history import Fleet
from servers import NatsServer, PostgresServer
from tensorcast.controlplane.archiver import archive
from tensorcast.controlplane.core.snapshots import EVENTS_EVERY, Layer, base_of, pack
from tensorcast.controlplane.main import GARBAGE_THRESHOLDS
from tensorcast.controlplane.services.api_replay import summarize
from tensorcast.controlplane.settings import PARTITION_EVENTS
from tensorcast.controlplane.store import queries
from tensorcast.controlplane.store.archiving import Limits
from tensorcast.controlplane.store.cells import as_uuid
from tensorcast.controlplane.store.engine import connecting, make_engine
from tensorcast.controlplane.store.gathering import Gathering
from tensorcast.controlplane.store.migrate import migrate
from tensorcast.controlplane.store.partitions import make_room
from tensorcast.controlplane.store.rows import event_row, kind_of_state, state_row
from tensorcast.controlplane.store.snapshots import write_layer
from tensorcast.controlplane.store.tables import READ_MODELS, events
from tensorcast.controlplane.store.write import CURSOR, copy_rows, driver_of, load_position
from tensorcast.log.execute import foresee
from tensorcast.log.jetstream import JetStreamCursors, JetStreamLog, connect_log
from tensorcast.log.port import Stored
from tensorcast.schema.chain import GENESIS, HASH_BYTES, chain_events
from tensorcast.schema.cluster import evolve
from tensorcast.schema.codec import encode
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.events import aggregate_of
from tensorcast.schema.folds import STATES, fold_name
from tensorcast.schema.ids import Seq
from tensorcast.schema.subjects import log_subject

CLUSTER = "fleet"
BATCH = EVENTS_EVERY
ROWS_AT_ONCE = 20_000
FLIGHT = 2048
SERVING = b"serving cluster"
START_S_MAX = 300.0
SERVER_START_S_MAX = 600.0
"""NATS looks through its whole log before it listens."""


class Servers:
    """NATS and Postgres whose data stay in a folder, while the block lasts."""

    def __init__(self, folder: Path, *, synced: bool = True) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)  # as root, Postgres runs as another user
        for name in ("nats", "postgres"):
            (folder / name).mkdir(exist_ok=True)
        self.nats = NatsServer(folder / "nats")
        config = folder / "nats" / "nats.conf"
        if not synced:
            config.write_text(config.read_text().replace("sync_interval: always", ""))
        self.postgres = PostgresServer(folder / "postgres")

    def __enter__(self) -> Servers:
        servers.START_S_MAX = SERVER_START_S_MAX
        for name, server in (("Postgres", self.postgres), ("NATS", self.nats)):
            began = time.perf_counter()
            server.start()
            print(f"{name} is up after {time.perf_counter() - began:.1f} s", file=sys.stderr)
        return self

    def __exit__(self, *raised: object) -> None:
        self.nats.stop()
        self.postgres.stop()


class Pipe:
    """Publishes events as they are, without waiting for each: the server is asked now and then."""

    def __init__(self, log: JetStreamLog) -> None:
        self._log = log

    async def send(self, stored: Sequence[Stored]) -> None:
        nats = self._log.nats
        for start in range(0, len(stored), FLIGHT):
            *most, last = stored[start : start + FLIGHT]
            for one in most:
                await nats.publish(one.subject, one.payload)
            answer = await nats.request(last.subject, last.payload, timeout=60)
            assert json.loads(answer.data)["seq"] == last.seq, answer.data


async def fill(running: Servers, url: str, count: int) -> dict[str, object]:
    """Writes the history, and tells what it is."""
    await migrate(url)
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    engine = make_engine(url, name="benchmark", pooled=False)
    log = await connect_log(running.nats.url, CLUSTER, name="benchmark")
    gathering, head, began = Gathering(), GENESIS, time.perf_counter()
    positions: list[Seq] = []
    async with connecting(engine) as connection:
        await prepare(connection, count)
        for stored, recorded in history(count):
            rows = []
            for one, read in zip(stored, recorded, strict=True):
                gathering.place(evolve(gathering, read, read.event))
                gathering.at = read.seq
                rows.append(event_row(1, one, read, gathering))
            hashes = chain_events(head, 1, ((s.seq, s.subject.encode(), s.payload) for s in stored))
            head = hashes[-HASH_BYTES:]
            sending = asyncio.create_task(Pipe(log).send(stored))
            await write(connection, rows, hashes, recorded[-1])
            await sending
            if len(stored) == EVENTS_EVERY:
                await keep(connection, gathering, positions, recorded[-1])
            if len(positions) % 50 == 0:
                print(gathering.at, round(time.perf_counter() - began), file=sys.stderr)
        states = await write_states(connection, gathering)
        await finish(connection)
    await JetStreamCursors(log).store("scheduler", gathering.at)
    await log.aclose()
    await engine.dispose()
    return {"events": gathering.at, "states": states, "seconds": round(time.perf_counter() - began)}


def history(count: int) -> Iterator[tuple[list[Stored], list[Recorded]]]:
    """Events as they lie in a log, and as they read, in batches."""
    fleet = Fleet()
    drafts = enumerate(itertools.islice(itertools.chain(fleet.begin(), fleet.rounds()), count), 1)
    while batch := list(itertools.islice(drafts, BATCH)):
        yield (
            [
                Stored(Seq(seq), log_subject(CLUSTER, *aggregate_of(one.event)), encode(one))
                for seq, one in batch
            ],
            [foresee(one, Seq(seq)) for seq, one in batch],
        )


async def prepare(connection: AsyncConnection, count: int) -> None:
    await load_position(connection)
    async with connection.begin():
        for index in events.indexes:
            await connection.execute(text(f"DROP INDEX IF EXISTS {index.name}"))
        await make_room(connection, CURSOR, 1, count, PARTITION_EVENTS)
    await connection.execute(text("SET synchronous_commit = off"))
    await connection.execute(text("SET statement_timeout = 0"))
    await connection.commit()


async def write(
    connection: AsyncConnection, rows: Sequence[tuple], hashes: bytes, last: Recorded
) -> None:
    """As the persister does: events, hashes and position in one transaction."""
    async with connection.begin():
        await connection.execute(
            text("UPDATE cursors SET seq = :seq, event_id = :id, fold = :fold WHERE name = :name"),
            {"seq": last.seq, "id": as_uuid(last.id), "fold": fold_name(), "name": CURSOR},
        )
        await connection.execute(
            text("INSERT INTO chain VALUES (1, :seq, :hashes)"),
            {"seq": last.seq, "hashes": hashes},
        )
        await copy_rows(connection, events, rows)


async def keep(
    connection: AsyncConnection, gathering: Gathering, positions: list[Seq], last: Recorded
) -> None:
    """The next snapshot."""
    number = len(positions) + 1
    after = positions[base_of(number) - 1] if base_of(number) else Seq(0)
    packed = list(pack(gathering, after))  # type: ignore[arg-type]  # it has the maps of a view
    layer = Layer(
        fold=fold_name(),
        log_epoch=1,
        number=number,
        after=after,
        seq=gathering.at,
        event_id=last.id,
        skipped=0,
        states=sum(states for _, states in packed),
        parts=len(packed),
    )
    await write_layer(connection, layer, [part for part, _ in packed])
    positions.append(gathering.at)


async def write_states(connection: AsyncConnection, gathering: Gathering) -> int:
    """The read models."""
    written = 0
    async with connection.begin():
        await connection.execute(text("SELECT 1"))
        for cls, states in itertools.groupby(gathering.states(), type):
            while part := list(itertools.islice(states, ROWS_AT_ONCE)):
                table = READ_MODELS[kind_of_state(part[0])]
                assert isinstance(part[0], cls)
                await copy_rows(connection, table, [state_row(one) for one in part])
                written += len(part)
    return written


async def finish(connection: AsyncConnection) -> None:
    """What time would have done: vacuum, and the one index that is looked at."""
    await connection.execute(text("CREATE INDEX events_by_time ON events (at, seq)"))
    await connection.commit()
    driver = await driver_of(connection)
    await driver.execute("VACUUM ANALYZE")


async def start(running: Servers, url: str, folder: Path) -> dict[str, object]:
    """From the start of the process until it serves, and until its persister is at work."""
    environ = {
        **os.environ,
        "TENSORCAST_CLUSTER": CLUSTER,
        "TENSORCAST_NATS_URL": running.nats.url,
        "TENSORCAST_POSTGRES_URL": url,
        "TENSORCAST_ARCHIVE_DIR": str(folder / "archive"),
    }
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tensorcast.controlplane.main"),
        env=environ,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(START_S_MAX):
            while line := await process.stderr.readline():
                print(line.decode().rstrip(), file=sys.stderr)
                if SERVING in line:
                    break
        serving_s = time.perf_counter() - began
        log = await connect_log(running.nats.url, CLUSTER, name="benchmark")
        last = await log.last_seq()
        await nats_status(log)
        answered_s = time.perf_counter() - began
        await log.aclose()
        peak = int(Path(f"/proc/{process.pid}/status").read_text().split("VmHWM:")[1].split()[0])
    finally:
        process.send_signal(signal.SIGTERM)
        await process.communicate()
    return {
        "events": last,
        "serves_after_s": round(serving_s, 1),
        "answers_after_s": round(answered_s, 1),
        "peak_rss_bytes": peak << 10,
    }


async def nats_status(log: JetStreamLog) -> None:
    """One question to the API."""
    answer = await log.nats.request(f"tc.{CLUSTER}.api.status", b"{}", timeout=60)
    assert b"error" not in answer.data[:20], answer.data[:200]


async def moments(url: str) -> dict[str, object]:
    """Opens moments at the beginning, in the middle and at the end, each cold: the whole cluster,
    and what concerns one artifact."""
    engine = make_engine(url, name="benchmark")
    last, chance = await queries.committed_seq(engine), random.Random(1)
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    found: dict[str, object] = {"events": last}
    for name, at in (("beginning", 0.01), ("middle", 0.5), ("end", 1.0)):
        seq = Seq(int(last * at) - chance.randrange(1, EVENTS_EVERY))
        began = time.perf_counter()
        view = await queries.view_at(engine, seq)
        msgspec.json.encode(summarize(view, kind=None, what=None))
        whole_s = time.perf_counter() - began
        artifact = max(view.artifacts.values(), key=lambda one: one.version).id
        states = sum(len(getattr(view, name)) for name in STATES)
        del view
        began = time.perf_counter()
        view = await queries.view_at(engine, seq)
        msgspec.json.encode(summarize(view, kind="artifact", what=artifact))
        one_s = time.perf_counter() - began
        del view
        found[name] = {
            "seq": seq,
            "states": states,
            "cluster_s": round(whole_s, 2),
            "artifact_s": round(one_s, 2),
        }
    await engine.dispose()
    found["peak_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    return found


async def move(url: str, folder: Path) -> dict[str, object]:
    """As `tcctl store archive --before HALF`."""
    engine = make_engine(url, name="benchmark")
    half = await queries.committed_seq(engine) // 2
    await engine.dispose()
    began = time.perf_counter()
    await archive(url, CLUSTER, folder / "archive", Limits(before_seq=Seq(half)))
    files = list((folder / "archive").glob("*.parquet"))
    return {
        "before": half,
        "seconds": round(time.perf_counter() - began),
        "files": len(files),
        "bytes": sum(one.stat().st_size for one in files),
    }


def main() -> None:
    """Does one of these, and prints what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--fill", type=int)
    parser.add_argument("--start", action="store_true")
    parser.add_argument("--moments", action="store_true")
    parser.add_argument("--archive", action="store_true")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    with Servers(folder, synced=not arguments.fill) as running:
        name = folder / "database"
        if arguments.fill:
            name.write_text(running.postgres.create_database().rpartition("/")[2])
        url = running.postgres.settings.url.rpartition("/")[0] + "/" + name.read_text()
        if arguments.fill:
            found = asyncio.run(fill(running, url, arguments.fill))
        elif arguments.start:
            found = asyncio.run(start(running, url, folder))
        elif arguments.moments:
            found = asyncio.run(moments(url))
        else:
            found = asyncio.run(move(url, folder))
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
