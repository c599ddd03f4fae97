"""Two databases, one of which follows the other: the first one is lost, the second is promoted."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from pathlib import Path

import asyncpg
import msgspec
import pytest

from conformance.log import cordoned, draft
from servers import PostgresServer
from stores import committed, folded, persisting, stored_view
from tensorcast.controlplane.store import queries
from tensorcast.controlplane.store.engine import make_engine
from tensorcast.controlplane.store.migrate import migrate
from tensorcast.deploy.options import LOOPBACK
from tensorcast.deploy.pgdata import find_account, run_as
from tensorcast.deploy.ports import choose_port
from tensorcast.log.memory import MemoryLog
from tensorcast.schema.api import AuditQuery
from tensorcast.schema.errors import Unavailable

pytestmark = [pytest.mark.slow, pytest.mark.failover, pytest.mark.timeout(180)]

REPLICATED = ("-c", "wal_level=replica", "-c", "max_wal_senders=4")


class Replicated(PostgresServer):
    """A Postgres whose changes others may follow, or that follows another."""

    def launch(self):
        launch = super().launch()
        return msgspec.structs.replace(launch, command=(*launch.command, *REPLICATED))

    def admin_url(self) -> str:
        return f"postgresql://postgres:admin@{LOOPBACK}:{self.port}/postgres"

    def follow(self, folder: Path) -> Replicated:
        """A standby of this one, not started yet."""
        standby = object.__new__(Replicated)
        standby.folder, standby.pid, standby.port = folder, None, choose_port(taken=[self.port])
        standby.settings = msgspec.structs.replace(
            self.settings, folder=str(folder), port=standby.port
        )
        account = find_account(self.settings.run_as) if self.settings.run_as else None
        if account is not None:
            os.chown(folder, account.uid, account.gid)
        program = str(Path(self.settings.programs) / "pg_basebackup")
        words = [program, "-D", str(folder / "data"), "-R", "-c", "fast", "-d", self.admin_url()]
        done = run_as(account, words, cwd=folder)
        assert done.returncode == 0, done.stderr
        return standby

    async def ask(self, question: str, database: str = "postgres"):
        url = self.admin_url().rpartition("/")[0] + f"/{database}"
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetchval(question)
        finally:
            await connection.close()


@pytest.fixture
def pair():
    folders = [Path(tempfile.mkdtemp(prefix="tensorcast-postgres-")) for _ in range(2)]
    for folder in folders:
        folder.chmod(0o755)
    primary = Replicated(folders[0])
    primary.start()
    standby = primary.follow(folders[1])
    standby.start()
    yield primary, standby
    for server in (standby, primary):
        server.stop()
    for folder in folders:
        shutil.rmtree(folder)


async def until_true(ask) -> None:
    async with asyncio.timeout(60):
        while not await ask():  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def grow(log: MemoryLog, count: int) -> None:
    last = await log.last_seq()
    await log.append([draft(cordoned(f"n{last + number}")) for number in range(count)])


async def test_a_standby_is_promoted_and_gets_what_it_never_had(pair):
    primary, standby = pair
    single = primary.create_database()
    name = single.rpartition("/")[2]
    places = f"{LOOPBACK}:{primary.port},{LOOPBACK}:{standby.port}"
    url = f"postgresql://tensorcast:secret@{places}/{name}"
    await migrate(url)
    engine = make_engine(url, name="test")
    log = MemoryLog()
    await grow(log, 100)
    async with persisting(log, url) as progress:
        await committed(progress, 100)

        async def followed() -> bool:
            return await standby.ask("SELECT count(*) FROM events", name) == 100

        await until_true(followed)
        standby.stop()
        await grow(log, 50)  # what the standby will never have been told
        await committed(progress, 150)
        primary.kill()
        standby.start()
        assert await standby.ask("SELECT pg_promote()")
        await grow(log, 25)

        async def caught_up() -> bool:
            try:
                return await queries.committed_seq(engine) == 175
            except Unavailable:
                return False

        await until_true(caught_up)
        await until_true(lambda: asyncio.sleep(0, progress.problem is None and progress.is_active))
    found = await queries.find_events(engine, AuditQuery())
    assert [one.seq for one in found] == list(range(1, 176))
    assert await stored_view(engine) == await folded(log)
    assert await standby.ask("SELECT count(*) FROM events", name) == 175
    await engine.dispose()
