"""Connections to Postgres, and what their errors mean."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

import asyncpg
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from tensorcast.controlplane.store.certificates import FILES, make_tls
from tensorcast.schema.errors import (
    Corrupt,
    InvalidArgument,
    OutOfCapacity,
    PermissionDenied,
    Unavailable,
)

CONNECT_S_MAX: Final = 10
STATEMENT_S_MAX: Final = 120
POOL_CONNECTIONS_MAX: Final = 8
_TRANSIENT: Final = frozenset({"08", "40", "53", "57", "58"})
"""Classes of SQLSTATE that a later try can mend: connection, rollback, resources, operator."""

_DISK_FULL: Final = "53100"
_READ_ONLY: Final = "25006"
"""The server was the one that takes writes when the connection was made."""
_DAMAGED: Final = frozenset({"3F000", "42P01", "42703"})
"""No such schema, table, column."""
REPAIR: Final = (
    "Restore it from a backup, or give the control plane an empty database: it is filled from the"
    " log (of an embedded cluster: `tcctl down`, move the folder `postgres` of its home away,"
    " `tcctl up`)."
)
_LOST: Final = (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""The connection is gone (TimeoutError is an OSError). The driver calls it an internal error when
that happens between the parts of a statement."""
_ERRORS: Final = (
    DBAPIError,
    asyncpg.PostgresError,
    asyncpg.exceptions.TargetServerAttributeNotMatched,
    *_LOST,
)


def parse_url(url: str) -> URL:
    """A `postgresql://` URL for our driver (a socket folder as `?host=/folder`). Several servers
    with commas, `h1:5432,h2:5432`: the one that takes writes is used, whichever it is at the time.
    Raises InvalidArgument."""
    try:
        parsed = make_url(_spread_hosts(url))
    except ArgumentError:
        raise InvalidArgument(
            "The URL of Postgres cannot be read.",
            hint="Write postgresql://user:password@host:port/database.",
        ) from None
    if parsed.drivername.partition("+")[0] not in ("postgresql", "postgres"):
        raise InvalidArgument(
            f"{parsed.drivername!r} is not Postgres.", hint="Write postgresql://..."
        )
    query = {"ssl" if name == "sslmode" else name: value for name, value in parsed.query.items()}
    return parsed.set(drivername="postgresql+asyncpg", query=query)


def _spread_hosts(url: str) -> str:
    """The URL with several hosts in its query, where SQLAlchemy expects them."""
    parts = urlsplit(url)
    user, at, places = parts.netloc.rpartition("@")
    hosts = places.split(",")
    if len(hosts) == 1:
        return url
    query = [("host", host if ":" in host else f"{host}:5432") for host in hosts]
    given = parse_qsl(parts.query)
    if "target_session_attrs" not in dict(given):
        query.append(("target_session_attrs", "read-write"))
    # Not the database's own name for "no host": `user@/database`.
    return parts._replace(netloc=f"{user}{at}", query=urlencode([*query, *given])).geturl()


def make_engine(url: str, *, name: str, pooled: bool = True) -> AsyncEngine:
    """An engine; it connects when it is used. `name` tells operators who is connected. Without a
    pool a connection ends, and its locks with it, when it is given back. Raises InvalidArgument."""
    arguments: dict[str, object] = {
        "timeout": CONNECT_S_MAX,
        "command_timeout": STATEMENT_S_MAX,
        "server_settings": {"application_name": name, "jit": "off", "timezone": "UTC"},
    }
    parsed = parse_url(url)
    tls = make_tls({name: str(value) for name, value in parsed.query.items()})
    if tls is not None:
        parsed = parsed.difference_update_query((*FILES, "ssl"))
        arguments["ssl"] = tls
    if not pooled:
        return create_async_engine(parsed, connect_args=arguments, poolclass=NullPool)
    return create_async_engine(
        parsed,
        connect_args=arguments,
        pool_size=POOL_CONNECTIONS_MAX,
        max_overflow=0,
        pool_pre_ping=True,
    )


@asynccontextmanager
async def connecting(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A connection for as long as the block lasts. What fails because Postgres is away, in the
    block as well, is raised as Unavailable; a user whom it does not let in as PermissionDenied; a
    full disk as OutOfCapacity; a table that is gone as Corrupt."""
    try:
        async with engine.connect() as connection:
            yield connection
    except _ERRORS as error:
        if is_foreign(error):
            raise PermissionDenied(
                f"Postgres at {place(engine)} and this process do not accept each other's"
                f" certificates ({brief(error)}).",
                hint="Check sslrootcert, sslcert and sslkey in TENSORCAST_POSTGRES_URL.",
            ) from error
        if is_refusal(error):
            raise PermissionDenied(
                f"Postgres at {place(engine)} refuses this user ({brief(error)}).",
                hint="Check the URL.",
            ) from error
        if is_damage(error):
            raise Corrupt(
                f"Postgres at {place(engine)} is not whole ({brief(error)}).", hint=REPAIR
            ) from error
        if not is_transient(error):
            raise
        if is_full(error):
            raise OutOfCapacity(
                f"Postgres at {place(engine)} has no room left ({brief(error)}).",
                hint="Make room on its disk.",
            ) from error
        raise Unavailable(
            f"Postgres at {place(engine)} cannot be reached ({brief(error)}).",
            hint="Is it running? `tcctl status` says.",
        ) from error


def is_foreign(error: Exception) -> bool:
    """Whether a certificate is the reason: of another authority, or of another host."""
    origin = error.orig if isinstance(error, DBAPIError) else error
    return isinstance(origin, ssl.SSLError)


def is_refusal(error: Exception) -> bool:
    """Whether Postgres does not let this user in."""
    origin = error.orig if isinstance(error, DBAPIError) else error
    return str(getattr(origin, "sqlstate", "")).startswith("28")


def is_damage(error: Exception) -> bool:
    """Whether a table, or a column of one, is not there: somebody has dropped it."""
    origin = error.orig if isinstance(error, DBAPIError) else error
    return getattr(origin, "sqlstate", None) in _DAMAGED


def is_full(error: Exception) -> bool:
    """Whether the disk of Postgres is full."""
    origin = error.orig if isinstance(error, DBAPIError) else error
    return getattr(origin, "sqlstate", None) == _DISK_FULL


def is_transient(error: Exception) -> bool:
    """Whether the same statement can succeed later, without a change."""
    origin = error.orig if isinstance(error, DBAPIError) else error
    state = getattr(origin, "sqlstate", None)
    if isinstance(state, str):
        return state[:2] in _TRANSIENT or state == _READ_ONLY
    if isinstance(origin, _LOST):
        return True
    if isinstance(origin, asyncpg.exceptions.TargetServerAttributeNotMatched):
        return True  # none of them takes writes yet
    return isinstance(error, DBAPIError) and (
        error.connection_invalidated or isinstance(error, InterfaceError)
    )


def place(engine: AsyncEngine) -> str:
    """Where the database is, without the password."""
    url = engine.url
    host = url.host or url.query.get("host", "localhost")
    if isinstance(host, tuple):
        return f"{','.join(host)}/{url.database}"
    return f"{host}:{url.port or 5432}/{url.database}"


def brief(error: Exception) -> str:
    """The first line of what an error says."""
    origin = error.orig if isinstance(error, DBAPIError) else error
    return (str(origin).strip() or type(origin).__name__).splitlines()[0]
