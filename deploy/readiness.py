"""Waiting for a cluster: what counts as up, as progress, as hopeless, and who is to blame."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

import msgspec

from tensorcast.deploy import logs
from tensorcast.deploy.control import EXTERNAL, Request, ServiceStatus, ask
from tensorcast.deploy.former import died_badly
from tensorcast.deploy.home import Layout, is_locked
from tensorcast.deploy.options import ClusterConfig
from tensorcast.deploy.plan import NATS, POSTGRES, SUPERVISOR
from tensorcast.schema.errors import TensorCastError, Unavailable
from tensorcast.schema.wording import end_sentence

READY_TIMEOUT_S: Final = 60.0  # without a sign of progress
READY_TIMEOUT_S_MAX: Final = 600.0
EXTERNAL_S_MAX: Final = 10.0  # a server of somebody else: nothing that we do makes it answer
FAILURES_MAX: Final = 6  # of one service in a row, before `up` gives up early
POLL_S: Final = 0.03

_TITLES: Final = {NATS: "NATS", POSTGRES: "Postgres"}
_PASSING: Final = re.compile(r"a former Postgres is still shutting down|starting up|^$")


class Refused(TensorCastError):
    """A service says that it must not run as things are: no patience and no restart will help."""

    code = "failed"


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """How a cluster is: up (all of it), degraded (parts of it) or down."""

    state: Literal["up", "degraded", "down"]
    services: tuple[ServiceStatus, ...] = ()


def wait_until_ready(
    layout: Layout, config: ClusterConfig, seen: set[str], progress: Callable[[str], None]
) -> Status:
    """Wait until every service is up; tells of each one that was not in `seen`.

    A service that tells of its progress (a mover with gigabytes to read) gets more time. Raises
    `Refused`, or `Unavailable` for anything else that keeps a service from being ready.
    """
    began = last_sign = time.monotonic()
    told: dict[str, str] = {}
    movers = {node.name for node in config.nodes}
    services: tuple[ServiceStatus, ...] = ()
    while time.monotonic() < min(last_sign + READY_TIMEOUT_S, began + READY_TIMEOUT_S_MAX):
        services = _ask_services(layout, config)
        for service in services:
            if service.state == "up" and service.name not in seen and service.name != SUPERVISOR:
                seen.add(service.name)
                progress(f"{service.name} is up{find_note(service, movers)}")
            if is_progress(service, told.get(service.name, "")):
                told[service.name] = service.detail
                last_sign = time.monotonic()
                progress(f"{service.name}: {service.detail}")
        if services and all(service.state == "up" for service in services):
            return Status(state="up", services=services)
        for service in services:
            if service.refusal:
                hint = f"Its log is {layout.log(service.name)}."
                raise Refused(f"{service.name} refuses to run: {service.refusal}", hint=hint)
        if any(is_hopeless(service) for service in services):
            break
        if any(map(is_absent, services)) and time.monotonic() > began + EXTERNAL_S_MAX:
            break
        time.sleep(POLL_S)
    raise explain_unready(layout, services)


def find_note(service: ServiceStatus, movers: set[str]) -> str:
    """What a mover has to say at its start besides its address; empty when it is as usual."""
    if service.name not in movers:
        return ""
    note = service.detail.partition(". ")[2].partition("; ")[0]
    return f": {note}" if note else ""


def is_progress(service: ServiceStatus, told: str) -> bool:
    """Whether a service that starts for the first time says something new of itself."""
    fresh = service.state == "starting" and not service.failures
    return fresh and service.detail not in ("", told)


def _ask_services(layout: Layout, config: ClusterConfig) -> tuple[ServiceStatus, ...]:
    """What the supervisor says; () while it is about to start.

    Raises `Unavailable` when it has ended.
    """
    try:
        return ask(Path(config.sockets), Request(do="status")).services
    except Unavailable as error:
        time.sleep(POLL_S)
        if died_badly(layout) and not is_locked(layout.supervisor_lock):
            words = logs.last_words(layout.log(SUPERVISOR))
            raise Unavailable(end_sentence(f"The supervisor has ended: {words}")) from error
        return ()


def is_hopeless(service: ServiceStatus) -> bool:
    """Whether more patience will not help. Postgres may need some tries after a crash, until its
    former life is over."""
    if service.name == POSTGRES and _PASSING.search(service.detail):
        return False
    return service.failures >= FAILURES_MAX


def is_absent(service: ServiceStatus) -> bool:
    """Whether it is a server of somebody else that does not answer."""
    return service.state == "down" and service.detail.startswith(EXTERNAL)


def explain_unready(layout: Layout, services: tuple[ServiceStatus, ...]) -> Unavailable:
    """The error about the first service that is to blame."""
    hint = "`tcctl doctor` says more, `tcctl down` stops the rest."
    guilty = [service for service in services if service.state != "up"]
    if not guilty:
        words = logs.last_words(layout.log(SUPERVISOR)) or "it says nothing"
        return Unavailable(end_sentence(f"The supervisor does not start: {words}"), hint=hint)
    absent = next(filter(is_absent, guilty), None)
    if absent is not None:
        where = absent.detail.removeprefix(EXTERNAL).partition(";")[0]
        return Unavailable(
            f"The {_TITLES.get(absent.name, absent.name)} server at {where} does not answer.",
            hint="Start it, and then `tcctl up` again; `tcctl down` stops the rest.",
        )
    # What waits for another service is not to blame itself.
    service = next((one for one in guilty if one.state != "waiting"), guilty[0])
    words = logs.last_words(layout.log(service.name)) or service.detail or service.state
    return Unavailable(
        end_sentence(f"{service.name} does not become ready: {words}"),
        hint=f"Its log is {layout.log(service.name)}; {hint}",
    )
