"""The way of a database from empty to today's tables, and back."""

from __future__ import annotations

import asyncio
import functools

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text

from tensorcast.controlplane.store.block_tables import metadata
from tensorcast.controlplane.store.engine import make_engine
from tensorcast.controlplane.store.migrate import HEAD, SCRIPTS, migrate, read_revision, run
from tensorcast.schema.errors import Conflict, PermissionDenied, Timeout


@pytest.fixture
async def engine(postgres_url):
    engine = make_engine(postgres_url, name="test", pooled=False)
    yield engine
    await engine.dispose()


def is_partition(table: str | None) -> bool:
    return table is not None and table.startswith(("events_first", "events_to_"))


def scripts() -> ScriptDirectory:
    config = Config()
    config.set_main_option("script_location", SCRIPTS)
    return ScriptDirectory.from_config(config)


def test_the_named_head_is_the_last_migration():
    assert scripts().get_heads() == [HEAD]


def test_files_are_named_by_their_number_and_what_they_do():
    for script in scripts().walk_revisions():
        assert script.path.rpartition("/")[2].startswith(f"r{script.revision}_")


async def test_migrations_make_the_tables_that_the_code_names(postgres_url, engine):
    await migrate(postgres_url)

    def differences(connection):
        options = {
            "compare_type": True,
            "compare_server_default": True,
            "include_name": lambda name, kind, _: kind != "table" or not is_partition(name),
        }
        return compare_metadata(MigrationContext.configure(connection, opts=options), metadata)

    async with engine.connect() as connection:
        assert await connection.run_sync(differences) == []


async def test_migrating_again_changes_nothing(postgres_url, engine):
    await migrate(postgres_url)
    async with engine.begin() as connection:
        await connection.execute(
            text("INSERT INTO cursors (name, log_epoch, seq) VALUES ('kept', 1, 7)")
        )
    await migrate(postgres_url)
    async with engine.connect() as connection:
        assert await connection.scalar(text("SELECT seq FROM cursors")) == 7
        assert await connection.run_sync(read_revision) == HEAD


async def test_control_planes_that_start_at_once_migrate_once(postgres_url, engine):
    await asyncio.gather(*(migrate(postgres_url) for _ in range(4)))
    async with engine.connect() as connection:
        assert await connection.run_sync(read_revision) == HEAD


async def test_every_migration_can_be_taken_back(postgres_url, engine):
    def tables(connection):
        found = inspect(connection).get_multi_columns().items()
        names = {(table, column["name"]) for (_, table), columns in found for column in columns}
        return {
            name for name in names if name[0] != "alembic_version" and not is_partition(name[0])
        }

    async def to(revision: str) -> set[tuple[str, str]]:
        async with engine.begin() as connection:
            await connection.run_sync(functools.partial(run, target=revision))
            return await connection.run_sync(tables)

    everything = await to(HEAD)
    assert {table for table, _ in everything} == set(metadata.tables)
    for script in scripts().walk_revisions():
        left = await to(script.down_revision or "base")
        assert left < everything
        assert await to(script.revision) == everything
        assert await to(script.down_revision or "base") == left
        everything = left
    assert everything == set()
    async with engine.connect() as connection:
        functions = await connection.scalar(
            text(
                "SELECT count(*) FROM pg_proc JOIN pg_namespace n ON n.oid = pronamespace"
                " WHERE nspname = 'public'"
            )
        )
        assert functions == 0
    await migrate(postgres_url)
    async with engine.connect() as connection:
        assert {table for table, _ in await connection.run_sync(tables)} == set(metadata.tables)


async def test_the_database_of_a_newer_release_is_left_alone(postgres_url, engine):
    await migrate(postgres_url)
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(Conflict, match="9999"):
        await migrate(postgres_url)


async def test_a_postgres_that_is_still_starting_is_waited_for(postgres_server, postgres_url):
    postgres_server.kill()
    waiting = asyncio.create_task(migrate(postgres_url))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    postgres_server.start()
    await waiting


async def test_waiting_has_an_end():
    with pytest.raises(Timeout):
        await migrate("postgresql://ada:hidden@127.0.0.1:9/tc", timeout_s=0.5)


async def test_a_wrong_password_is_said_at_once(postgres_url):
    with pytest.raises(PermissionDenied) as refused:
        await migrate(postgres_url.replace(":secret@", ":wrong@"))
    assert "wrong" not in str(refused.value)
