"""How soon a moment of a long history opens (docs/log.md, "Snapshots").

    python benchmarks/time_travel.py FOLDER --seed 1000000   writes it into a Postgres of its own
    python benchmarks/time_travel.py FOLDER --catch-up       makes the snapshots that it lacks
    python benchmarks/time_travel.py FOLDER --measure        opens moments of it, cold; prints JSON
    python benchmarks/time_travel.py FOLDER --leap 10000000  its end alone: see `leap`

`--seconds` ends the writing early; the next `--seed` goes on there.

The history is that of `fleet_history.py`, written by the persister's own writer while the maker of
snapshots works beside it, as in life. A moment is opened as `tcctl replay` does it: the nearest
snapshot, the events after it, and the answer as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import resource
import signal
import statistics
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from fleet_history import Fleet
from tensorcast.controlplane.core.snapshots import Layer, pack
from tensorcast.controlplane.services import snapshots as maker
from tensorcast.controlplane.services.api_replay import summarize
from tensorcast.controlplane.services.persister import prepare_batch
from tensorcast.controlplane.services.progress import Progress
from tensorcast.controlplane.store import queries
from tensorcast.controlplane.store.cells import as_uuid
from tensorcast.controlplane.store.chain import load_hash
from tensorcast.controlplane.store.engine import connecting, make_engine
from tensorcast.controlplane.store.gathering import Gathering
from tensorcast.controlplane.store.load import fold, read_history
from tensorcast.controlplane.store.migrate import migrate
from tensorcast.controlplane.store.snapshots import write_layer
from tensorcast.controlplane.store.tables import events, snapshots
from tensorcast.controlplane.store.write import load_position, write_batch
from tensorcast.deploy import postgres_server as programs
from tensorcast.deploy.home import Layout
from tensorcast.deploy.options import EmbeddedPostgres
from tensorcast.deploy.pgdata import prepare_postgres
from tensorcast.deploy.ports import choose_port
from tensorcast.deploy.spawn import Launch, spawn
from tensorcast.log.execute import foresee
from tensorcast.log.port import Stored
from tensorcast.schema.chain import HASH_BYTES
from tensorcast.schema.cluster import ClusterView, evolve
from tensorcast.schema.codec import encode
from tensorcast.schema.envelope import Draft
from tensorcast.schema.events import aggregate_of
from tensorcast.schema.folds import fold_name
from tensorcast.schema.ids import Seq
from tensorcast.schema.subjects import log_subject

BATCH = 1000
MOMENTS = 5
FOLDED = 50_000
TAIL = 8000
_SIZE = text(
    "SELECT coalesce((SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree(:name)),"
    " pg_total_relation_size(:name))"
)


class Live:
    """What the maker of snapshots sees of a follower: the view of now."""

    def __init__(self) -> None:
        self.view = ClusterView()


@asynccontextmanager
async def postgres(folder: Path) -> AsyncIterator[str]:
    """A Postgres whose data stay in `folder`; gives its URL."""
    settings = prepare_postgres(
        Layout(folder),
        EmbeddedPostgres(
            port=choose_port(), password="secret", admin_password="admin", folder=str(folder)
        ),
        lambda _: None,
    )
    pid = spawn(
        Launch(
            command=programs.command(settings),
            environ=programs.environment(),
            folder=str(folder),
            log=str(folder / "server.log"),
            run_as=settings.run_as,
        )
    )
    try:
        await migrate(settings.url)
        yield settings.url
    finally:
        os.kill(pid, signal.SIGINT)
        await asyncio.to_thread(os.waitpid, pid, 0)


async def catch_up(url: str) -> dict[str, object]:
    """Makes the snapshots that a history does not have yet, as after an upgrade."""
    maker.POLL_S = 0.05  # type: ignore[misc]  # impatient, to be measured
    live, progress = Live(), Progress()
    engine = make_engine(url, name="benchmark", pooled=False)
    progress.committed_seq = await queries.committed_seq(engine)
    progress.is_active = True
    began = time.perf_counter()
    making = asyncio.create_task(_making(live, progress, url))
    goal = progress.committed_seq - maker.EVENTS_EVERY
    async with connecting(engine) as connection:
        first = await connection.scalar(select(func.max(snapshots.c.seq))) or 0
        while (await connection.scalar(select(func.max(snapshots.c.seq))) or 0) < goal:
            await connection.commit()
            await asyncio.sleep(0.5)
    took_s = time.perf_counter() - began
    making.cancel()
    await asyncio.gather(making, return_exceptions=True)
    await engine.dispose()
    return {"events": progress.committed_seq - first, "seconds": round(took_s, 1)}


async def seed(url: str, count: int, seconds: float) -> dict[str, object]:
    """Writes a history up to `count` events for `seconds` at most, snapshots beside it."""
    maker.POLL_S = 0.05  # type: ignore[misc]  # impatient, to be measured
    live, progress = Live(), Progress()
    engine = make_engine(url, name="benchmark", pooled=False)
    fleet = Fleet()
    drafts = itertools.islice(itertools.chain(fleet.begin(), fleet.rounds()), count)
    making = asyncio.create_task(_making(live, progress, url))
    began = time.perf_counter()
    async with connecting(engine) as connection:
        position = await load_position(connection)
        view = await queries.view_at(engine, position.seq)
        head = await load_hash(connection, position.log_epoch, position.seq)
        first = position.seq
        for _ in itertools.islice(drafts, first):
            pass
        await connection.execute(text("SET synchronous_commit = off"))
        for index in events.indexes:
            await connection.execute(text(f"DROP INDEX IF EXISTS {index.name}"))
        await connection.commit()
        live.view, progress.committed_seq = view, position.seq
        progress.is_active = True
        began = time.perf_counter()
        while time.perf_counter() - began < seconds and (
            batch_drafts := list(itertools.islice(drafts, BATCH))
        ):
            stored = [
                Stored(Seq(seq), log_subject("fleet", *aggregate_of(one.event)), encode(one))
                for seq, one in enumerate(batch_drafts, position.seq + 1)
            ]
            view, batch = prepare_batch(view, position, head, stored)
            # Neither the read models nor the other indexes of events are read to open a moment.
            await write_batch(connection, msgspec.structs.replace(batch, states=()))
            position, head = batch.last, batch.hashes[-32:]
            live.view, progress.committed_seq = view, position.seq
            await asyncio.sleep(0)
    took_s = time.perf_counter() - began
    assert view.skipped == 0
    await asyncio.sleep(5)
    making.cancel()
    await asyncio.gather(making, return_exceptions=True)
    await engine.dispose()
    written = position.seq - first
    rate = round(written / took_s) if written else 0
    return {"events": position.seq, "seconds": round(took_s, 1), "events_per_s": rate}


async def leap(url: str, count: int) -> dict[str, object]:
    """Writes the end of a history of `count` events alone: the snapshot of all but the last ones,
    folded in memory, and the last ones themselves. The others are as if they lay in an archive that
    is away. Prints how it opens: by one layer, which has each state once."""
    drafts = enumerate(itertools.chain(*_fleet()), 1)
    gathering, began = Gathering(), time.perf_counter()
    for seq, one in itertools.islice(drafts, count - TAIL):
        recorded = foresee(one, Seq(seq))
        gathering.place(evolve(gathering, recorded, one.event))
        gathering.at = recorded.seq
    view = gathering.view()
    folded_s = time.perf_counter() - began
    engine = make_engine(url, name="benchmark", pooled=False)
    async with connecting(engine) as connection:
        await _begin_at(connection, view, recorded.id)
        position, head = await load_position(connection), bytes(HASH_BYTES)
        rest = [
            Stored(Seq(seq), log_subject("fleet", *aggregate_of(one.event)), encode(one))
            for seq, one in itertools.islice(drafts, TAIL)
        ]
        view, batch = prepare_batch(view, position, head, rest)
        await write_batch(connection, msgspec.structs.replace(batch, states=()))
    await engine.dispose()
    states = sum(1 for _ in gathering.states())
    return {"events": view.at, "states": states, "folded_seconds": round(folded_s, 1)}


def _fleet() -> tuple[Iterable[Draft], Iterable[Draft]]:
    fleet = Fleet()
    return fleet.begin(), fleet.rounds()


async def _begin_at(connection: AsyncConnection, view: ClusterView, event_id: str) -> None:
    """As if all up to this view had been archived."""
    packed = list(pack(view, Seq(0)))
    layer = Layer(
        fold=fold_name(),
        log_epoch=1,
        number=1,
        after=Seq(0),
        seq=view.at,
        event_id=event_id,
        skipped=0,
        states=sum(states for _, states in packed),
        parts=len(packed),
    )
    await load_position(connection)
    async with connection.begin():
        await connection.execute(
            text("UPDATE cursors SET seq = :seq, event_id = :id WHERE name = 'persister'"),
            {"seq": view.at, "id": as_uuid(event_id)},
        )
        await connection.execute(
            text("INSERT INTO chain VALUES (1, :seq, :zeros)"),
            {"seq": view.at, "zeros": bytes(HASH_BYTES)},
        )
        await connection.execute(
            text(
                "INSERT INTO archives VALUES (1, :seq, 1, '/nowhere', 'away', 0, '', now(), now(),"
                " now(), now(), now())"
            ),
            {"seq": view.at},
        )
    await write_layer(connection, layer, [part for part, _ in packed])


async def open_last(url: str) -> dict[str, object]:
    """Opens the moments of the end, cold."""
    engine = make_engine(url, name="benchmark")
    last = await queries.committed_seq(engine)
    times = [await _open(engine, Seq(last - back)) for back in (0, TAIL // 2, TAIL - 1)]
    async with connecting(engine) as connection:
        size = await connection.scalar(_SIZE, {"name": "snapshot_parts"})
    await engine.dispose()
    return {
        "events": last,
        "seconds": [round(one, 1) for one in times],
        "snapshot_bytes": int(size),
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
    }


async def measure(url: str) -> dict[str, object]:
    """Opens moments all along the history, each cold."""
    engine = make_engine(url, name="benchmark")
    last = await queries.committed_seq(engine)
    chance = random.Random(1)
    moments = {}
    for tenth in (1, 2, 5, 10):
        high = last * tenth // 10
        seqs = [chance.randrange(high * 9 // 10, high) for _ in range(MOMENTS)]
        times = [await _open(engine, Seq(seq)) for seq in seqs]
        moments[str(high)] = {
            "seconds_median": round(statistics.median(times), 2),
            "seconds_max": round(max(times), 2),
        }
    async with connecting(engine) as connection:
        sizes = {
            name: await connection.scalar(_SIZE, {"name": name})
            for name in ("events", "snapshot_parts")
        }
        count = await connection.scalar(select(func.count()).select_from(snapshots))
        began, view = time.perf_counter(), ClusterView()
        async for batch in read_history(connection, 1, to_seq=Seq(min(FOLDED, last))):
            view = fold(view, batch)
        folded_per_s = view.at / (time.perf_counter() - began)
    final = await queries.view_at(engine, last)
    names = ("artifacts", "keys", "replicas", "operations", "nodes", "leases", "engines", "signals")
    await engine.dispose()
    return {
        "events": last,
        "states": {name: len(getattr(final, name)) for name in names},
        "opened_by_position": moments,
        "snapshots": count,
        "bytes": sizes,
        "whole_fold_events_per_s": round(folded_per_s),
        "whole_fold_seconds_of_all": round(last / folded_per_s, 1),
    }


async def _making(live: Live, progress: Progress, url: str) -> None:
    await maker.run_snapshots(
        live,  # type: ignore[arg-type]  # of a follower it has the view
        progress,
        url,
    )


async def _open(engine: AsyncEngine, seq: Seq) -> float:
    began = time.perf_counter()
    view = await queries.view_at(engine, seq)
    msgspec.json.encode(summarize(view, kind=None, what=None))
    assert view.at == seq
    return time.perf_counter() - began


async def main(arguments: argparse.Namespace) -> None:
    """Seeds or measures, and prints what came of it."""
    folder = Path(arguments.folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    async with postgres(folder) as url:
        if arguments.measure:
            found = await measure(url)
        elif arguments.catch_up:
            found = await catch_up(url)
        elif arguments.leap:
            found = await leap(url, arguments.leap)
        elif arguments.open_last:
            found = await open_last(url)
        else:
            found = await seed(url, arguments.seed, arguments.seconds)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--seed", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--catch-up", action="store_true")
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--leap", type=int, help="write the end of a history of so many events")
    parser.add_argument("--open-last", action="store_true", help="open the moments of that end")
    asyncio.run(main(parser.parse_args()))
