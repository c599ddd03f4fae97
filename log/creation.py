"""The JetStream object behind the log: how it is made, and what must be true of an existing one."""

from __future__ import annotations

import os
from typing import Final

import msgspec

from tensorcast.log.connection import Connection, Refused, explain
from tensorcast.schema.errors import Corrupt, InvalidArgument, Unavailable
from tensorcast.schema.subjects import log_name, log_subjects

DUPLICATE_WINDOW_S: Final = 120
VERSION_MIN: Final = (2, 12)
_ABSENT: Final = 10059
_IN_USE: Final = 10058
_NANOSECONDS: Final = 1_000_000_000


class State(msgspec.Struct, frozen=True):
    first_seq: int
    last_seq: int
    messages: int


class Config(msgspec.Struct, frozen=True):
    storage: str
    retention: str
    max_msgs: int = -1
    max_bytes: int = -1
    max_age: int = 0
    max_msgs_per_subject: int = -1
    allow_atomic: bool = False
    deny_delete: bool = False
    deny_purge: bool = False


class Info(msgspec.Struct, frozen=True):
    """What the server says of one object. `created` tells two of the same name apart."""

    created: str
    state: State
    config: Config


def replicas() -> int:
    """How many servers keep the log: $TENSORCAST_LOG_REPLICAS, 1 by default. Raises
    InvalidArgument."""
    text = os.environ.get("TENSORCAST_LOG_REPLICAS", "1")
    if text not in ("1", "3", "5"):
        raise InvalidArgument(
            f"TENSORCAST_LOG_REPLICAS is {text!r}.", hint="Use 1, 3 or 5 servers."
        )
    return int(text)


async def open_log(connection: Connection, cluster: str) -> str:
    """Makes the log when it is not there; returns when it was created. Raises InvalidArgument when
    the server is too old or the existing log could lose events, Unavailable."""
    check_version(connection)
    name = log_name(cluster)
    try:
        info = await read_info(connection, name)
        if info is None:
            await create(connection, log_config(name, log_subjects(cluster)))
            info = await read_info(connection, name)
    except Refused as refusal:
        raise explain(refusal.error) from refusal
    assert info is not None, "it was made a moment ago"
    _check_config(name, info.config)
    return info.created


async def check_identity(connection: Connection, name: str, created: str) -> State:
    """The state of the log. Raises Corrupt when it is not the one that was connected to."""
    try:
        info = await read_info(connection, name)
    except Refused as refusal:
        raise explain(refusal.error) from refusal
    if info is None or info.created != created:
        what = "is gone" if info is None else f"was made anew at {info.created}"
        raise Corrupt(
            f"The log {name} {what}: its positions mean other events now.",
            hint="Restore it from a backup of the NATS server, or start a new cluster.",
        )
    return info.state


async def read_state(connection: Connection, name: str) -> State | None:
    """How far the log goes; None when there is none. Raises Refused and Unavailable."""
    info = await read_info(connection, name)
    return info.state if info else None


async def read_info(connection: Connection, name: str) -> Info | None:
    """What the server says of the object; None when there is none. Raises Refused and
    Unavailable."""
    try:
        return await connection.api(f"STREAM.INFO.{name}", None, Info)
    except Refused as refusal:
        if refusal.error.err_code == _ABSENT:
            return None
        raise


def log_config(name: str, subjects: str) -> dict[str, object]:
    """How an object is made from which nothing is ever deleted."""
    return {
        "name": name,
        "subjects": [subjects],
        "storage": "file",
        "retention": "limits",
        "discard": "new",
        "max_msgs": -1,
        "max_bytes": -1,
        "max_age": 0,
        "max_consumers": -1,
        "num_replicas": replicas(),
        "duplicate_window": DUPLICATE_WINDOW_S * _NANOSECONDS,
        "deny_delete": True,
        "deny_purge": True,
        "allow_atomic": True,
        "allow_direct": True,
    }


async def create(connection: Connection, config: dict[str, object]) -> None:
    """Makes an object; one that another process has just made is as good. Raises Refused and
    Unavailable, also when this process may not make it: then the control plane will."""
    if connection.access.is_mover:
        raise Unavailable(
            f"{config['name']} is not there yet.", hint="The control plane makes it: start it."
        )
    try:
        await connection.api(f"STREAM.CREATE.{config['name']}", config, msgspec.Raw)
    except Refused as refusal:
        if refusal.error.err_code != _IN_USE:
            raise


def check_version(connection: Connection) -> None:
    """Raises InvalidArgument when the server is too old."""
    version = connection.nats.connected_server_version
    if (version.major, version.minor) < VERSION_MIN:
        raise InvalidArgument(
            f"The NATS server at {connection.place} is {version.major}.{version.minor}; it knows"
            " no atomic batches.",
            hint="Use 2.15.1 or newer.",
        )


def _check_config(name: str, config: Config) -> None:
    wrong = [
        text
        for text, bad in (
            ("it is not kept in files", config.storage != "file"),
            ("it forgets events that were read", config.retention != "limits"),
            (
                "it drops old events",
                max(config.max_msgs, config.max_bytes, config.max_msgs_per_subject) > 0
                or config.max_age > 0,
            ),
            ("events can be deleted from it", not (config.deny_delete and config.deny_purge)),
            ("it takes no atomic batches", not config.allow_atomic),
        )
        if bad
    ]
    if wrong:
        raise InvalidArgument(
            f"The JetStream object {name} cannot hold a log: {', '.join(wrong)}.",
            hint="Remove it, or choose another cluster name.",
        )
