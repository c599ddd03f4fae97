"""Real servers for tests: nats-server and Postgres from their wheels, on free ports of loopback.

They live in folders of their own, die with the test process, and can be killed and started again
by the tests that want to see what survives.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from tensorcast.deploy import nats_server as nats_programs
from tensorcast.deploy import postgres_server as postgres_programs
from tensorcast.deploy.home import Layout
from tensorcast.deploy.options import LOOPBACK, EmbeddedNats, EmbeddedPostgres
from tensorcast.deploy.pgdata import prepare_postgres
from tensorcast.deploy.ports import choose_port
from tensorcast.deploy.spawn import Launch, spawn

START_S_MAX = 40.0


class Server:
    """A process on a port: started, killed and started again with the same data."""

    port: int
    death_signal = signal.SIGTERM

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pid: int | None = None

    def launch(self) -> Launch:
        raise NotImplementedError

    def is_ready(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex((LOOPBACK, self.port)) == 0

    def start(self) -> None:
        """Starts it and waits until it answers; a server that gives up at first is tried again."""
        deadline = time.monotonic() + START_S_MAX
        while time.monotonic() < deadline:
            self.pid = spawn(self.launch())
            while time.monotonic() < deadline and not self._has_ended():
                if self.is_ready():
                    return
                time.sleep(0.02)
            time.sleep(0.2)
        self.stop()
        raise AssertionError(f"{type(self).__name__} did not start: {self.log_text()}")

    def kill(self) -> None:
        """As a crash: no warning, nothing written down."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(self.death_signal)

    def log_text(self) -> str:
        log = self.folder / "server.log"
        return log.read_text()[-4000:] if log.exists() else ""

    def _end(self, number: int) -> None:
        if self.pid is not None:
            os.kill(self.pid, number)
            os.waitpid(self.pid, 0)
            self.pid = None

    def _has_ended(self) -> bool:
        assert self.pid is not None
        pid, _ = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            self.pid = None
        return bool(pid)


class NatsServer(Server):
    """JetStream with every acknowledged message on disk."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port = choose_port()
        self.settings = EmbeddedNats(
            port=self.port,
            monitor_port=choose_port(taken=[self.port]),
            user="tensorcast",
            password="secret",
        )
        self.url = self.settings.url
        config = nats_programs.render_config(
            self.settings, cluster="test", store=folder / "jetstream"
        )
        (folder / "nats.conf").write_text(config)

    def launch(self) -> Launch:
        program = str(nats_programs.find_program())
        return Launch(
            command=(program, "-c", str(self.folder / "nats.conf")),
            environ={"PATH": os.environ["PATH"]},
            folder=str(self.folder),
            log=str(self.folder / "server.log"),
        )

    def forget(self) -> None:
        """Loses everything, as a wiped disk would. Only while it is stopped."""
        shutil.rmtree(self.folder / "jetstream")


class PostgresServer(Server):
    """One Postgres; `create_database` gives each test its own."""

    death_signal = signal.SIGINT

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port = choose_port()
        self.settings = prepare_postgres(
            Layout(folder),
            EmbeddedPostgres(
                port=self.port, password="secret", admin_password="admin", folder=str(folder)
            ),
            lambda _: None,
        )

    def launch(self) -> Launch:
        environ = postgres_programs.environment()
        stale = postgres_programs.stale_owner(postgres_programs.data_folder(self.settings))
        if stale is not None:
            environ["PG_GRANDPARENT_PID"] = str(stale)
        return Launch(
            command=postgres_programs.command(self.settings),
            environ=environ,
            folder=str(self.folder),
            log=str(self.folder / "server.log"),
            run_as=self.settings.run_as,
            death_signal=signal.SIGINT,
        )

    def is_ready(self) -> bool:
        async def ask() -> None:
            connection = await asyncpg.connect(self.settings.url, timeout=2)
            await connection.close()

        try:
            _run(ask())
        except (OSError, TimeoutError, asyncpg.PostgresError):
            return False
        return True

    def create_database(self, template: str = "template1") -> str:
        """The URL of a new database: empty, or a copy of one in which nobody works."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        admin = f"postgresql://postgres:admin@{LOOPBACK}:{self.port}/postgres"

        async def create() -> None:
            connection = await asyncpg.connect(admin)
            await connection.execute(f"CREATE DATABASE {name} TEMPLATE {template} OWNER tensorcast")
            await connection.close()

        _run(create())
        return f"postgresql://tensorcast:secret@{LOOPBACK}:{self.port}/{name}"


def _run(coroutine) -> None:
    """Runs a coroutine to its end, also while the loop of an async test is running."""
    loop = asyncio.new_event_loop()
    running = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        loop.run_until_complete(coroutine)
    finally:
        loop.close()
        asyncio._set_running_loop(running)


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    """A nats-server of this test's own: `url`, `kill()`, `start()`, `forget()`."""
    folder = tmp_path / "nats"
    folder.mkdir()
    server = NatsServer(folder)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def _shared_postgres() -> Iterator[PostgresServer]:
    # Not under pytest's private folder: as root, Postgres runs as another user.
    folder = Path(tempfile.mkdtemp(prefix="tensorcast-postgres-"))
    folder.chmod(0o755)
    server = PostgresServer(folder)
    yield server
    server.stop()
    shutil.rmtree(folder)


@pytest.fixture
def postgres_server(_shared_postgres: PostgresServer) -> PostgresServer:
    """The Postgres of this test run, up: `create_database()`, `kill()`, `start()`."""
    if _shared_postgres.pid is None:
        _shared_postgres.start()
    return _shared_postgres


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> str:
    """The URL of an empty database."""
    return postgres_server.create_database()
