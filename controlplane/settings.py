"""What the control plane is told by its environment, read once, checked, in one value."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from typing import TypedDict

import msgspec

from tensorcast.schema.access import Access, read_access
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.ids import parse_cluster

SERVICES = ("persister", "scheduler", "timers", "api")
HEARTBEAT_S = 1.0
NODE_TIMEOUT_S = 5.0
POLICY_TIMEOUT_S = 5.0
TOPOLOGY = ("rack", "host")
PARTITION_EVENTS = 1 << 18
"""32 snapshots of a history; some hundred MB with all indexes."""
_AGES_S = {"m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_SIZES = {"mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_LIMIT = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)\s*([mhdw]|[mgt]ib)", re.IGNORECASE)
PARTITION_EVENTS_MIN = 1024
PARTITION_EVENTS_MAX = 1 << 30
_PREFIX = "TENSORCAST_"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """`services` are those that run in this process; times are in seconds. `notify_socket` is where
    a supervisor hears that the process is ready; `audit_dir` the folder of the key and the file of
    signed heads (None: no heads are signed); `policies` are files or folders with policies,
    each of which may take `policy_timeout_s` for a decision;
    `partition_events` is the size of each new partition of the history; `archive_dir` where old
    events go: by themselves, when they are older than `retention_s` or lie beyond
    `retention_bytes` of younger ones (None: they stay)."""

    cluster: str
    nats_url: str
    postgres_url: str
    services: frozenset[str]
    heartbeat_s: float = HEARTBEAT_S
    node_timeout_s: float = NODE_TIMEOUT_S
    topology: tuple[str, ...] = TOPOLOGY
    policies: tuple[str, ...] = ()
    policy_timeout_s: float = POLICY_TIMEOUT_S
    access: Access = Access()
    notify_socket: str | None = None
    audit_dir: str | None = None
    partition_events: int = PARTITION_EVENTS
    archive_dir: str | None = None
    retention_s: float | None = None
    retention_bytes: int | None = None


def read_settings(environ: Mapping[str, str], services: str) -> Settings:
    """The settings; `services` are names with commas between. Raises InvalidArgument, naming the
    variable and what it should hold."""
    chosen = _parse_services(services)
    heartbeat_s = _seconds(environ, "HEARTBEAT_S", HEARTBEAT_S)
    node_timeout_s = _seconds(environ, "NODE_TIMEOUT_S", NODE_TIMEOUT_S)
    if node_timeout_s < 2 * heartbeat_s:
        raise InvalidArgument(
            f"{_PREFIX}NODE_TIMEOUT_S is {node_timeout_s:g}, and a heartbeat comes every "
            f"{heartbeat_s:g} s.",
            hint="Allow for two missed heartbeats at least.",
        )
    needs_postgres = bool(chosen & {"persister", "api"})
    return Settings(
        cluster=parse_cluster(environ.get(_PREFIX + "CLUSTER", "default")),
        nats_url=_url(environ, "NATS_URL", ("nats", "tls"), required=True),
        postgres_url=_url(
            environ, "POSTGRES_URL", ("postgresql", "postgres"), required=needs_postgres
        ),
        services=chosen,
        heartbeat_s=heartbeat_s,
        node_timeout_s=node_timeout_s,
        topology=_topology(environ.get(_PREFIX + "TOPOLOGY", "")),
        policies=tuple(filter(None, environ.get(_PREFIX + "POLICIES", "").split(os.pathsep))),
        policy_timeout_s=_seconds(environ, "POLICY_TIMEOUT_S", POLICY_TIMEOUT_S),
        access=read_access(environ, "controlplane"),
        notify_socket=environ.get("NOTIFY_SOCKET") or None,
        audit_dir=environ.get(_PREFIX + "AUDIT_DIR") or None,
        partition_events=_partition_events(environ),
        archive_dir=environ.get(_PREFIX + "ARCHIVE_DIR") or None,
        **_retention(environ),
    )


def _partition_events(environ: Mapping[str, str]) -> int:
    text = environ.get(_PREFIX + "PARTITION_EVENTS", "") or str(PARTITION_EVENTS)
    number = int(text) if text.isascii() and text.isdigit() else 0
    if not PARTITION_EVENTS_MIN <= number <= PARTITION_EVENTS_MAX:
        raise InvalidArgument(
            f"{_PREFIX}PARTITION_EVENTS is {text!r}.",
            hint=f"Give a number of events, from {PARTITION_EVENTS_MIN} to {PARTITION_EVENTS_MAX}.",
        )
    return number


class _Retention(TypedDict, total=False):
    retention_s: float
    retention_bytes: int


def _retention(environ: Mapping[str, str]) -> _Retention:
    """`30d`, `100GiB`, or both with a comma between: what is beyond either goes."""
    text = environ.get(_PREFIX + "RETENTION", "").strip()
    if not text:
        return {}
    if not environ.get(_PREFIX + "ARCHIVE_DIR"):
        raise InvalidArgument(
            f"{_PREFIX}RETENTION is set, and {_PREFIX}ARCHIVE_DIR is not.",
            hint="Say where old events go.",
        )
    found = _Retention()
    for part in text.split(","):
        match = _LIMIT.fullmatch(part.strip())
        if match is None:
            raise InvalidArgument(
                f"{_PREFIX}RETENTION is {text!r}.",
                hint="Give an age, a size, or both with a comma between, as in 30d,100GiB.",
            )
        number, unit = float(match[1]), match[2].lower()
        if unit in _AGES_S:
            found["retention_s"] = number * _AGES_S[unit]
        else:
            found["retention_bytes"] = int(number * _SIZES[unit])
    return found


def _topology(text: str) -> tuple[str, ...]:
    """Names of labels, the widest place first."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if len(set(names)) < len(names) or any("=" in name or " " in name for name in names):
        raise InvalidArgument(
            f"{_PREFIX}TOPOLOGY is {text!r}.",
            hint="Give names of labels of nodes, the widest place first, as in zone,rack,host.",
        )
    return names or TOPOLOGY


def _parse_services(text: str) -> frozenset[str]:
    chosen = frozenset(name.strip() for name in text.split(",") if name.strip())
    unknown = sorted(chosen - set(SERVICES))
    if unknown or not chosen:
        raise InvalidArgument(
            f"{', '.join(unknown) or 'Nothing'} is not a service of the control plane.",
            hint=f"Choose from {', '.join(SERVICES)}.",
        )
    return chosen


def _url(environ: Mapping[str, str], name: str, schemes: tuple[str, ...], *, required: bool) -> str:
    url = environ.get(_PREFIX + name, "")
    if not url and not required:
        return ""
    if not url.startswith(tuple(f"{scheme}://" for scheme in schemes)):
        raise InvalidArgument(
            f"{_PREFIX}{name} does not hold a URL that begins with {schemes[0]}://.",
            hint="Set it, or start the control plane by `tcctl up`.",
        )
    return url


def _seconds(environ: Mapping[str, str], name: str, otherwise: float) -> float:
    text = environ.get(_PREFIX + name, "")
    try:
        seconds = float(text) if text else otherwise
    except ValueError:
        seconds = math.nan
    if not 0.01 <= seconds <= 3600:
        raise InvalidArgument(
            f"{_PREFIX}{name} is {text!r}.", hint="Give seconds, from 0.01 to 3600."
        )
    return seconds
