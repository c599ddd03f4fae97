"""Brings a database to the tables of this release."""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import Final

from sqlalchemy import Connection, inspect, text
from sqlalchemy.ext.asyncio import AsyncEngine

from tensorcast.controlplane.store.engine import connecting, make_engine
from tensorcast.schema.errors import Conflict, Timeout, Unavailable

HEAD: Final = "0016"
"""The last migration of this release."""
FOLD_NAMED: Final = "0010"
"""From this one on the database says which fold its read models follow from."""
SCRIPTS: Final = "tensorcast:migrations"
LOCK: Final = 0x7463_6D69_6772  # any number that no other program uses in this database
_PAUSE_S: Final = 0.25
_logger = logging.getLogger(__name__)


async def migrate(url: str, *, timeout_s: float = 60.0) -> None:
    """Runs the migrations that the database does not have yet. Safe to repeat, and for several
    control planes at once: one works, the others wait.

    Waits for a Postgres that is still starting. Raises Conflict when the database was made by a
    newer release, Timeout when Postgres did not answer in time, and whatever is wrong with the
    URL or the rights.
    """
    engine = make_engine(url, name="tensorcast migrate", pooled=False)
    try:
        async with asyncio.timeout(timeout_s):
            await _try_until_done(engine)
    except TimeoutError as error:
        raise Timeout(
            f"Postgres was not ready in {timeout_s:g} s.",
            hint="Is it running? `tcctl status` says.",
        ) from error
    finally:
        await engine.dispose()


async def _try_until_done(engine: AsyncEngine) -> None:
    while True:
        try:
            return await _migrate_once(engine)
        except Unavailable as error:
            _logger.info("%s", error)
        await asyncio.sleep(_PAUSE_S)


async def _migrate_once(engine: AsyncEngine) -> None:
    async with connecting(engine) as connection:
        await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
        current = await connection.run_sync(read_revision)
        if current != HEAD:
            check_known(current)
            await connection.run_sync(functools.partial(run, target=HEAD))
        await connection.commit()


def read_revision(connection: Connection) -> str | None:
    """The last migration that the database has had; None for an empty one."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return None if found is None else str(found)


def check_known(revision: str | None) -> None:
    """Raises Conflict for a revision that comes after this release."""
    if revision is not None and revision > HEAD:
        raise Conflict(
            f"The database is at migration {revision}; this release knows up to {HEAD}.",
            hint="Start the control plane of the newer release.",
        )


def run(connection: Connection, *, target: str) -> None:
    """Migrates up or down to `target` ("base" is empty) inside the connection's transaction."""
    # Imported here: most starts find nothing to do, and alembic takes a while to load.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", SCRIPTS)
    config.attributes["connection"] = connection
    current = read_revision(connection) or ""
    if target == "base" or target < current:
        if current >= FOLD_NAMED:  # what a step drops is made anew after the way up
            connection.execute(text("UPDATE cursors SET fold = NULL"))
        command.downgrade(config, target)
    else:
        command.upgrade(config, target)
