from __future__ import annotations

import asyncpg
import pytest
from sqlalchemy.exc import DBAPIError

from tensorcast.controlplane.store.engine import (
    connecting,
    is_transient,
    make_engine,
    parse_url,
    place,
)
from tensorcast.schema.errors import Corrupt, InvalidArgument, OutOfCapacity


@pytest.mark.parametrize(
    ("url", "host", "query"),
    [
        ("postgresql://ada:pw@db:5433/tc", "db", {}),
        ("postgres://ada:pw@db/tc", "db", {}),
        ("postgresql://ada@/tc?host=/run/pg", None, {"host": "/run/pg"}),
        ("postgresql://ada@db/tc?sslmode=require", "db", {"ssl": "require"}),
        (
            "postgresql://ada@h1:1,h2/tc",
            None,
            {"host": ("h1:1", "h2:5432"), "target_session_attrs": "read-write"},
        ),
        (
            "postgresql://ada@h1:1,h2/tc?target_session_attrs=any",
            None,
            {"host": ("h1:1", "h2:5432"), "target_session_attrs": "any"},
        ),
    ],
)
def test_urls_of_postgres_are_for_our_driver(url, host, query):
    parsed = parse_url(url)
    assert (parsed.drivername, parsed.host, dict(parsed.query)) == (
        "postgresql+asyncpg",
        host,
        query,
    )


@pytest.mark.parametrize("url", ["", "db:5432", "mysql://db/tc", "nats://x"])
def test_other_urls_are_refused(url):
    with pytest.raises(InvalidArgument):
        parse_url(url)


def test_the_place_has_no_password():
    assert place(make_engine("postgresql://ada:hidden@db:5433/tc", name="t")) == "db:5433/tc"
    assert place(make_engine("postgresql://ada@/tc?host=/run/pg", name="t")) == "/run/pg:5432/tc"


def wrapped(error: Exception) -> DBAPIError:
    return DBAPIError("SELECT 1", {}, error)


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError(),
        TimeoutError(),
        asyncpg.CannotConnectNowError("starting up"),
        asyncpg.AdminShutdownError("terminating"),
        asyncpg.DiskFullError("no space"),
        asyncpg.InterfaceError("connection is closed"),
        asyncpg.InternalClientError("another operation is in progress"),
        asyncpg.ConnectionDoesNotExistError("gone"),
    ],
)
def test_what_time_can_mend(error):
    assert is_transient(error)
    assert is_transient(wrapped(error))


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.UndefinedTableError("no such table"),
        asyncpg.InvalidPasswordError("no"),
        asyncpg.UniqueViolationError("twice"),
        ValueError("no"),
    ],
)
def test_what_time_cannot_mend(error):
    assert not is_transient(error)
    assert not is_transient(wrapped(error))


async def test_a_table_that_is_gone_is_told_with_what_to_do():
    class Torn:
        url = make_engine("postgresql://ada@db/tc", name="t").url

        def connect(self):
            raise wrapped(asyncpg.UndefinedTableError('relation "events" does not exist'))

    with pytest.raises(Corrupt, match=r'not whole .*"events".* empty database'):
        async with connecting(Torn()):
            pass


async def test_a_full_disk_is_told_as_such():
    class Full:
        url = make_engine("postgresql://ada@db/tc", name="t").url

        def connect(self):
            raise wrapped(asyncpg.DiskFullError("could not extend file: No space left on device"))

    with pytest.raises(OutOfCapacity, match=r"Postgres at db.* no room left .*No space left on"):
        async with connecting(Full()):
            pass
