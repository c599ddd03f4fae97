"""Everything that is measured, running: servers of its own, our control plane, the raw persister,
and the clock of what is committed.

Postgres says itself when a position is committed (NOTIFY in the transaction that moves it), for
both sides in the same way.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import asyncpg
from nats.aio.client import Client

from events import raw
from servers import NatsServer, PostgresServer
from tensorcast.controlplane.store.migrate import migrate
from tensorcast.log.jetstream import JetStreamLog, connect_log

CLUSTER = "bench"
SERVICES = "persister,scheduler,timers,api"
START_S_MAX = 60.0
WAIT_S_MAX = 120.0
_TRIGGER = """
CREATE FUNCTION tell_committed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('committed', NEW.seq::text);
    RETURN NULL;
END $$;
CREATE TRIGGER tell_committed AFTER UPDATE ON cursors
    FOR EACH ROW WHEN (NEW.name = 'persister') EXECUTE FUNCTION tell_committed();
"""


class Commits:
    """When which position was committed, by one connection that listens."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, int]] = []
        self._last = 0
        self._moved = asyncio.Event()

    def take(self, *heard: object) -> None:
        self._last = int(str(heard[-1]))
        self.seen.append((time.perf_counter(), self._last))
        self._moved.set()

    async def wait_for(self, seq: int) -> float:
        """When it was committed, as `time.perf_counter` counts."""
        async with asyncio.timeout(WAIT_S_MAX):
            while self._last < seq:
                self._moved.clear()
                await self._moved.wait()
        return next(at for at, committed in self.seen if committed >= seq)


class Rig:
    """What the measurements work with."""

    def __init__(self, log: JetStreamLog, nats: Client, postgres: asyncpg.Connection) -> None:
        self.log = log
        self.nats = nats
        self.postgres = postgres
        self.committed = {"tensorcast": Commits(), "raw loop": Commits()}
        self.postgres_url = ""
        self.create_database: Callable[[], str] = str
        self.nats_url = ""
        self.processes: dict[str, Sequence[int]] = {}

    def parts(self, name: str) -> dict[str, float]:
        """CPU seconds of each part."""
        nats, postgres = self.processes["servers"]
        return {
            "publisher": time.process_time(),
            "nats": _cpu_s(nats),
            "postgres": _cpu_s(postgres),
            "persister": _cpu_s(self.processes[name][0]),
        }

    def cpu_s(self, name: str) -> float:
        """CPU seconds of our own process, the servers and the persister of one side."""
        return sum(self.parts(name).values())


def _cpu_s(pid: int) -> float:
    """User and system time of a process, and of its living children (Postgres has many)."""
    total = 0
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for one in (pid, *children):
        try:
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


@asynccontextmanager
async def running() -> AsyncIterator[Rig]:
    """All of it, until the block ends."""
    async with AsyncExitStack() as owned:
        folder = Path(tempfile.mkdtemp(prefix="tensorcast-events-"))
        owned.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)
        (folder / "nats").mkdir()
        (folder / "postgres").mkdir(mode=0o755)
        nats_server, postgres_server = (
            NatsServer(folder / "nats"),
            PostgresServer(folder / "postgres"),
        )
        for server in (nats_server, postgres_server):
            server.start()
            owned.callback(server.stop)
        url = postgres_server.create_database()
        await migrate(url)
        log = await connect_log(nats_server.url, CLUSTER, name="bench")
        owned.push_async_callback(log.aclose)
        nats = Client()
        await nats.connect(nats_server.url)
        owned.push_async_callback(nats.close)
        postgres = await asyncpg.connect(url)
        owned.push_async_callback(postgres.close)
        await postgres.execute(_TRIGGER)
        await raw.create(nats, postgres)
        rig = Rig(log, nats, postgres)
        rig.nats_url, rig.postgres_url = nats_server.url, url
        rig.create_database = postgres_server.create_database
        await postgres.add_listener("committed", rig.committed["tensorcast"].take)
        await postgres.add_listener("raw_committed", rig.committed["raw loop"].take)
        ours = owned.enter_context(process(folder, "controlplane", _ours(rig)))
        theirs = owned.enter_context(process(folder, "raw", _raw(rig)))
        assert nats_server.pid is not None
        assert postgres_server.pid is not None
        rig.processes = {
            "servers": [nats_server.pid, postgres_server.pid],
            "tensorcast": [ours.pid],
            "raw loop": [theirs.pid],
        }
        yield rig


def _ours(rig: Rig) -> tuple[list[str], dict[str, str]]:
    environ = {
        "TENSORCAST_CLUSTER": CLUSTER,
        "TENSORCAST_NATS_URL": rig.nats_url,
        "TENSORCAST_POSTGRES_URL": rig.postgres_url,
    }
    return [sys.executable, "-m", "tensorcast.controlplane.main", "--services", SERVICES], environ


def _raw(rig: Rig) -> tuple[list[str], dict[str, str]]:
    return [sys.executable, "-m", "events.raw", rig.nats_url, rig.postgres_url], {}


@contextmanager
def process(
    folder: Path, name: str, how: tuple[list[str], dict[str, str]]
) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a log, for as long as the block lasts."""
    command, environ = how
    with (folder / f"{name}.log").open("wb") as log:
        started = subprocess.Popen(command, env={**os.environ, **environ}, stdout=log, stderr=log)
    try:
        yield started
    finally:
        started.send_signal(signal.SIGTERM)
        try:
            started.wait(10)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()
