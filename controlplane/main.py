"""`python -m tensorcast.controlplane.main`: the process of the control plane.

It waits for NATS and Postgres, brings the database up to date when it is the one that writes it,
makes sure that the log and the database belong together, starts the services, and says when it is
ready. It stops at SIGTERM. When a service breaks, the process ends, so that its supervisor starts
it anew: no state is lost, there is none.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncEngine

from tensorcast.controlplane.core.guard import ACTOR
from tensorcast.controlplane.notify import Supervisor
from tensorcast.controlplane.services.api import run_api
from tensorcast.controlplane.services.api_audit import Proofs
from tensorcast.controlplane.services.api_desk import Desk
from tensorcast.controlplane.services.api_postgres import PostgresBlocks, PostgresHistory
from tensorcast.controlplane.services.beginning import find_beginning
from tensorcast.controlplane.services.block_persister import run_block_persister
from tensorcast.controlplane.services.continuity import check_start
from tensorcast.controlplane.services.departures import run_departures
from tensorcast.controlplane.services.gate import Gate, GatedAppender
from tensorcast.controlplane.services.heartbeats import Heartbeats
from tensorcast.controlplane.services.interruptions import LastWords, interrupt_policies
from tensorcast.controlplane.services.persister import run_persister
from tensorcast.controlplane.services.plans import run_plans
from tensorcast.controlplane.services.policy_files import load_catalog
from tensorcast.controlplane.services.progress import Progress
from tensorcast.controlplane.services.retention import run_retention
from tensorcast.controlplane.services.scheduler import READER as SCHEDULER
from tensorcast.controlplane.services.scheduler import run_scheduler
from tensorcast.controlplane.services.signer import HeadFile, run_signer
from tensorcast.controlplane.services.snapshots import run_snapshots
from tensorcast.controlplane.services.timers import run_timers
from tensorcast.controlplane.services.verifiers import Verifiers
from tensorcast.controlplane.services.workers import Workers
from tensorcast.controlplane.settings import SERVICES, Settings, read_settings
from tensorcast.controlplane.store.engine import make_engine
from tensorcast.controlplane.store.migrate import migrate
from tensorcast.log.blocks import JetStreamBlocks
from tensorcast.log.execute import Origin, plan
from tensorcast.log.folding import Folding
from tensorcast.log.follower import Follower
from tensorcast.log.heads import JetStreamHeads
from tensorcast.log.jetstream import JetStreamCursors, JetStreamLog, connect_log
from tensorcast.log.tail import Tail
from tensorcast.log.writer import Writer
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.commands import StopPolicy
from tensorcast.schema.errors import (
    Corrupt,
    InvalidArgument,
    TensorCastError,
    Unavailable,
    find_leaves,
)
from tensorcast.schema.heads import public_key_of
from tensorcast.schema.ids import EventId, Seq

START_S_MAX = 60.0
CONNECT_S_MAX = 3.0
CATCH_UP_S_MAX = 60.0
PAUSE_S = 0.2
USAGE = 2
GARBAGE_THRESHOLDS = (50_000, 1000, 100)
"""The view is large, lives long and has no cycles: to search it for garbage every 700 objects would
take a third of all CPU."""
GARBAGE_PERIOD_S = 0.25
"""So often what is new is searched: 50,000 new objects at once would hold requests up for 0.1 s."""
GARBAGE_OBJECTS_MIN = 1000
NOWHERE = "postgresql://nowhere/"
_logger = logging.getLogger("tensorcast.controlplane")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs until SIGTERM or SIGINT (exit status 0), or until something breaks (1). 2: the settings
    make no sense."""
    parser = argparse.ArgumentParser(prog="tensorcast.controlplane", description=__doc__)
    parser.add_argument("--services", default=",".join(SERVICES), help="names, commas between")
    services = parser.parse_args(arguments).services
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    logging.getLogger("alembic").setLevel(logging.WARNING)
    try:
        settings = read_settings(os.environ, services)
    except InvalidArgument as error:
        _logger.error("%s", error)
        return USAGE
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    try:
        asyncio.run(run(settings))
    except BaseExceptionGroup as group:
        said, unforeseen = group.split(TensorCastError)
        for broken in find_leaves(said):
            _logger.error("%s", broken)
        if unforeseen is not None:
            raise unforeseen from None
        return 1
    return 0


async def run(settings: Settings) -> None:
    """Runs the services until SIGTERM or SIGINT. Raises what broke one of them."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    supervisor = Supervisor(settings.notify_socket)
    try:
        async with asyncio.TaskGroup() as tasks:
            work = tasks.create_task(serve(settings, supervisor))
            await _wait_for_either(stop, work)
            supervisor.tell(state="STOPPING=1", status="stopping")
            work.cancel()
    finally:
        supervisor.close()


async def _wait_for_either(stop: asyncio.Event, work: asyncio.Task[None]) -> None:
    waiting = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((waiting, work), return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


async def serve(settings: Settings, supervisor: Supervisor) -> None:
    """Connects, migrates, and runs the services for ever."""
    async with AsyncExitStack() as owned:
        log = await owned.enter_async_context(_open_log(settings, supervisor))
        if "persister" in settings.services:
            supervisor.tell(status="bringing the database up to date")
            await migrate(settings.postgres_url, timeout_s=START_S_MAX)
            await _refuse_another_log(settings, log, supervisor)
        tail, folding = Tail(log), Folding()
        beginning = await _find_beginning(settings, log, supervisor)
        follower = Follower(tail, view=beginning, folding=folding)
        desk = _make_desk(settings, log, follower, owned)
        await desk.gate.load()
        listening = asyncio.Event()
        tasks = await owned.enter_async_context(asyncio.TaskGroup())
        tasks.create_task(_collect_garbage())
        tasks.create_task(tail.run())
        tasks.create_task(desk.follower.run())
        tasks.create_task(desk.writer.run())
        await _catch_up(follower, await log.last_seq(), supervisor)
        for service in _services(settings, log, tail, folding, beginning, desk, listening):
            tasks.create_task(service)
        if "api" in settings.services:
            await listening.wait()
        gc.freeze()  # what is there now stays: to search it for garbage would hold requests up
        names = ", ".join(name for name in SERVICES if name in settings.services)
        _logger.info("serving cluster %s: %s", settings.cluster, names)
        supervisor.tell(state="READY=1", status=f"serving {names}")


async def _find_beginning(
    settings: Settings, log: JetStreamLog, supervisor: Supervisor
) -> ClusterView:
    """What the log is followed from: all services of this process begin there."""
    supervisor.tell(status="reading where to begin")
    reacted = None
    if "scheduler" in settings.services:
        reacted = await JetStreamCursors(log).load(SCHEDULER)
    view = await find_beginning(log, settings.postgres_url, reacted=reacted)
    _logger.info("following the log from event %d on", view.at + 1)
    return view


async def _catch_up(follower: Follower, last: Seq, supervisor: Supervisor) -> None:
    """Raises Timeout when the log does not come."""

    def tell(seen: Seq) -> None:
        supervisor.tell(status=f"reading the log: event {seen} of {last}")

    await follower.catch_up(last, CATCH_UP_S_MAX, tell)


async def _collect_garbage() -> None:
    """Looks through what is new, often and therefore briefly, for ever."""
    while True:
        await asyncio.sleep(GARBAGE_PERIOD_S)
        if gc.get_count()[0] >= GARBAGE_OBJECTS_MIN:
            gc.collect(0)


async def _refuse_another_log(
    settings: Settings, log: JetStreamLog, supervisor: Supervisor
) -> None:
    """Raises Corrupt, having told the supervisor, when the log is not the one whose events Postgres
    has: nobody may write to it."""
    try:
        await check_start(log, settings.postgres_url)
    except Corrupt as error:
        supervisor.tell(status=str(error))
        raise


def _make_desk(
    settings: Settings, log: JetStreamLog, follower: Follower, owned: AsyncExitStack
) -> Desk:
    """What the services share; closed with `owned`."""
    engine = make_engine(settings.postgres_url or NOWHERE, name="tensorcast api")
    owned.push_async_callback(engine.dispose)
    catalog = load_catalog(settings.topology, [Path(name) for name in settings.policies])
    last_words = _make_last_words(settings, follower)
    cursors = JetStreamCursors(log)
    return Desk(
        cluster=settings.cluster,
        writer=Writer(log),
        follower=follower,
        cursors=cursors,
        history=PostgresHistory(engine),
        heartbeats=Heartbeats(asyncio.get_running_loop().time),
        progress=Progress(),
        blocks=PostgresBlocks(engine),
        block_log=JetStreamBlocks(log.connection, settings.cluster),
        block_progress=Progress(),
        gate=Gate(cursors),
        catalog=interrupt_policies(catalog, settings.policy_timeout_s, last_words),
        proofs=_make_proofs(settings, log, engine, owned),
    )


def _make_last_words(settings: Settings, follower: Follower) -> LastWords:
    """Says in the log that a policy is stopped, while the event loop stands still because of it."""

    async def say(command: StopPolicy, cause: EventId | None) -> None:
        log = await connect_log(
            settings.nats_url,
            settings.cluster,
            name="controlplane watchdog",
            timeout_s=CONNECT_S_MAX,
            access=settings.access,
        )
        try:
            drafts, _ = plan(follower.view, [command], Origin(actor=ACTOR, cause=cause))
            if drafts:
                await log.append(drafts)
        finally:
            await log.aclose()

    return say


def _make_proofs(
    settings: Settings, log: JetStreamLog, engine: AsyncEngine, owned: AsyncExitStack
) -> Proofs:
    verifiers = Verifiers(settings.postgres_url or NOWHERE)
    owned.callback(verifiers.close)
    file = HeadFile(Path(settings.audit_dir)) if settings.audit_dir else None
    return Proofs(
        log=log,
        engine=engine,
        verifiers=verifiers,
        workers=Workers(settings.postgres_url or NOWHERE),
        heads=JetStreamHeads(log.connection, settings.cluster),
        head_file=file,
        key=public_key_of(file.load_key()) if file else None,
        archive_dir=settings.archive_dir,
    )


def _services(
    settings: Settings,
    log: JetStreamLog,
    tail: Tail,
    folding: Folding,
    beginning: ClusterView,
    desk: Desk,
    listening: asyncio.Event,
) -> Iterator[Coroutine[object, object, None]]:
    """The chosen services, not started yet. The API sets `listening`."""
    chosen = settings.services
    follower, appender = desk.follower, GatedAppender(desk.writer, desk.gate)
    if chosen & {"timers", "api"}:
        yield desk.heartbeats.run(log.nats, settings.cluster)
    if "persister" in chosen:
        yield run_persister(
            tail,
            settings.postgres_url,
            desk.progress,
            folding,
            partition_events=settings.partition_events,
        )
        yield _persist_blocks(settings, desk.block_progress)
        yield run_snapshots(follower, desk.progress, settings.postgres_url)
        yield run_departures(desk)
        if desk.proofs is not None:
            workers = desk.proofs.workers
            yield run_retention(log, desk.proofs.engine, workers, desk.progress, settings)
        if settings.audit_dir:
            file = HeadFile(Path(settings.audit_dir))
            heads = JetStreamHeads(log.connection, settings.cluster)
            yield run_signer(settings.cluster, file, heads, desk.progress)
    if "scheduler" in chosen:
        yield run_plans(log, appender, follower, labels=settings.topology)
        yield run_scheduler(
            tail,
            appender,
            desk.cursors,
            follower=follower,
            catalog=desk.catalog,
            folding=folding,
            beginning=beginning,
            refusals=desk.refusals,
        )
    if "timers" in chosen:
        timeout_s = settings.node_timeout_s
        yield run_timers(log.nats, appender, follower, desk.heartbeats, node_timeout_s=timeout_s)
    if "api" in chosen:
        yield run_api(log.connection, desk, serving=listening.set)


async def _persist_blocks(settings: Settings, progress: Progress) -> None:
    """Copies the KV log, over a connection of its own: its large events must not stand before the
    small ones of the log."""
    while True:
        try:
            log = await connect_log(
                settings.nats_url,
                settings.cluster,
                name="controlplane kv",
                timeout_s=CONNECT_S_MAX,
                access=settings.access,
            )
            break
        except Unavailable as error:
            _logger.info("waiting for NATS: %s", error)
            await asyncio.sleep(PAUSE_S)
    try:
        blocks = JetStreamBlocks(log.connection, settings.cluster)
        await run_block_persister(blocks, settings.postgres_url, progress)
    finally:
        await log.aclose()


@asynccontextmanager
async def _open_log(settings: Settings, supervisor: Supervisor) -> AsyncIterator[JetStreamLog]:
    """The log, once NATS is there. Raises Unavailable when it does not come."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + START_S_MAX
    supervisor.tell(status="connecting to NATS")
    while True:
        try:
            log = await connect_log(
                settings.nats_url,
                settings.cluster,
                name="controlplane",
                timeout_s=CONNECT_S_MAX,
                access=settings.access,
            )
            break
        except Unavailable as error:
            if loop.time() > deadline_s:
                raise
            _logger.info("waiting for NATS: %s", error)
            supervisor.tell(status=f"waiting for NATS: {error.message}")
        await asyncio.sleep(PAUSE_S)
    try:
        yield log
    finally:
        await log.aclose()


if __name__ == "__main__":
    sys.exit(main())
