"""Alembic's way in: runs the migrations on the connection that it is given, or (for developers,
`alembic -c migrations/alembic.ini ...`) on the database of TENSORCAST_POSTGRES_URL."""

from __future__ import annotations

import asyncio
import os

from alembic import context
from sqlalchemy import Connection
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import create_async_engine


def run(connection: Connection) -> None:
    """Runs what was asked for, inside one transaction."""
    context.configure(connection=connection, transactional_ddl=True)
    with context.begin_transaction():
        context.run_migrations()


async def run_by_url(url: str) -> None:
    """The same on a connection of its own."""
    engine = create_async_engine(make_url(url).set(drivername="postgresql+asyncpg"))
    async with engine.begin() as connection:
        await connection.run_sync(run)
    await engine.dispose()


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    asyncio.run(run_by_url(os.environ["TENSORCAST_POSTGRES_URL"]))
