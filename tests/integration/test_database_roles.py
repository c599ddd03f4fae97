"""What each role of the database may do with the history."""

from __future__ import annotations

import asyncpg
import pytest

from conformance.log import cordoned, draft
from stores import committed, database, persisting
from tensorcast.log.memory import MemoryLog

__all__ = ["database"]  # a fixture


async def test_a_role_that_may_read_writes_nothing(database):
    log = MemoryLog()
    await log.append([draft(cordoned("n1"))])
    async with persisting(log, database) as progress:
        await committed(progress, 1)
    admin = await asyncpg.connect(database.replace("tensorcast:secret@", "postgres:admin@"))
    await admin.execute("DROP ROLE IF EXISTS looker; CREATE ROLE looker LOGIN PASSWORD 'looks'")
    await admin.execute("GRANT pg_read_all_data TO looker")
    looker = await asyncpg.connect(database.replace("tensorcast:secret@", "looker:looks@"))
    assert await looker.fetchval("SELECT count(*) FROM events") == 1
    for statement in (
        "UPDATE events SET actor = 'nobody'",
        "DELETE FROM events",
        "TRUNCATE events",
        "INSERT INTO cursors SELECT * FROM cursors",
        "DELETE FROM nodes",
        "ALTER TABLE events DISABLE TRIGGER events_stay",
        "DROP TABLE events",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await looker.execute(statement)
    await looker.close()
    await admin.execute("DROP ROLE looker")
    await admin.close()
