"""Backup and restore of a whole cluster in one folder.

Postgres has the whole history, with the exact bytes of every event, so one dump of it, with the
files that old events were moved into, is a copy of the cluster: taken while all runs, as of one
moment. At the first start after a restore the control plane finds an empty log and fills it from
them. The bytes of artifacts are not in a backup.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec

from tensorcast.deploy import postgres_server
from tensorcast.deploy.drafts import draft
from tensorcast.deploy.faults import FULL_HINT, explained
from tensorcast.deploy.home import (
    Layout,
    load_config,
    locked,
    make_folder,
    prepare_home,
    save_config,
    write_private,
)
from tensorcast.deploy.options import LOOPBACK, ClusterConfig, EmbeddedPostgres, External, UpOptions
from tensorcast.deploy.pgdata import prepare_postgres, run_as
from tensorcast.deploy.spawn import Launch, spawn
from tensorcast.schema.errors import (
    Conflict,
    Corrupt,
    InvalidArgument,
    NotFound,
    OutOfCapacity,
    Unavailable,
)

FORMAT: Final = 1
_ARCHIVES: Final = (
    "SELECT folder || '/' || name FROM archives WHERE dropped_at IS NOT NULL ORDER BY first"
)
START_S_MAX: Final = 60.0
_PAUSE_S: Final = 0.2
Progress = Callable[[str], None]


class Backup(msgspec.Struct, frozen=True, kw_only=True):
    """`backup.json`: what a folder is a backup of, and when its dump was begun."""

    tensorcast_backup: int
    cluster: str
    at: datetime
    nodes: int
    dram_bytes: int
    dump_bytes: int


def back_up(home: Path, folder: Path, progress: Progress = lambda _: None) -> Backup:
    """Writes a backup of the running cluster of `home` into a new or empty folder (mode 0700: it
    holds the key that signs the heads of the log). Nothing stops meanwhile.

    Raises `NotFound` without a cluster, `InvalidArgument` for a folder that is not empty,
    `Unavailable` when Postgres does not answer, `OutOfCapacity`.
    """
    layout = Layout(home.expanduser().absolute())
    config = load_config(layout)
    if config is None:
        raise NotFound(f"There is no cluster in {layout.home}.", hint="Name it by --data-dir.")
    if isinstance(config.postgres, External):
        raise InvalidArgument(
            "The Postgres of this cluster is your own.",
            hint="Back it up with its own tools; an empty log is filled from it at the next start.",
        )
    folder = folder.expanduser().absolute()
    make_folder(folder, 0o700)
    if any(folder.iterdir()):
        raise InvalidArgument(f"{folder} is not empty.", hint="Name a new folder.")
    at = datetime.now(UTC)
    progress("copying the history and what follows from it")
    dump = folder / "postgres.dump"
    words = ["--format=custom", "--compress=6", f"--file={dump}"]
    _run_client(config, "pg_dump", words)
    progress("copying the archives")
    _copy_archives(config, folder / "archive")
    if layout.audit.is_dir():
        with explained("copy", layout.audit):
            shutil.copytree(layout.audit, folder / "audit")
    made = Backup(
        tensorcast_backup=FORMAT,
        cluster=config.cluster,
        at=at,
        nodes=len(config.nodes),
        dram_bytes=config.nodes[0].dram_bytes,
        dump_bytes=dump.stat().st_size,
    )
    _sync(dump)
    # The last thing: a folder without it is no backup.
    write_private(folder / "backup.json", msgspec.json.encode(made))
    return made


def _copy_archives(config: ClusterConfig, folder: Path) -> None:
    """Copies the files with events that the dump does not have. Raises `NotFound` for one that is
    away."""
    listing = folder.with_name("archives.txt")
    words = ["--no-align", "--tuples-only", f"--output={listing}", f"--command={_ARCHIVES}"]
    _run_client(config, "psql", words)
    paths = [Path(line) for line in listing.read_text().splitlines()]
    listing.unlink()
    for path in paths:
        folder.mkdir(exist_ok=True)
        if not path.is_file():
            raise NotFound(
                f"The archive {path} is not there, and nothing else has its events.",
                hint="Bring it back, or say where the archives are now: `tcctl store archives"
                " --moved-to DIR`.",
            )
        with explained("copy", path):
            shutil.copy2(path, folder / path.name)
        _sync(folder / path.name)


def read_backup(folder: Path) -> Backup:
    """What the folder holds. Raises `NotFound` when it is no backup, `Corrupt` when it is not
    whole, `InvalidArgument` for one of a newer release."""
    try:
        found = msgspec.json.decode((folder / "backup.json").read_bytes(), type=Backup)
        size = (folder / "postgres.dump").stat().st_size
    except FileNotFoundError as error:
        raise NotFound(
            f"{folder} holds no backup that is whole.", hint="`tcctl backup DIR` makes one."
        ) from error
    except msgspec.MsgspecError as error:
        raise Corrupt(f"{folder}/backup.json cannot be read: {error}.") from error
    if found.tensorcast_backup > FORMAT:
        raise InvalidArgument(
            f"{folder} was written by a newer TensorCast.", hint="Upgrade this one."
        )
    if size != found.dump_bytes:
        raise Corrupt(
            f"{folder}/postgres.dump has {size} bytes of {found.dump_bytes}.",
            hint="It was cut short: use another backup.",
        )
    return found


def restore(folder: Path, home: Path, progress: Progress = lambda _: None) -> Backup:
    """Makes the cluster of a backup in an empty or new home; `up` starts it then.

    Raises `Conflict` when the home has a cluster, and what `read_backup` and the preparation of
    a home raise.
    """
    folder = folder.expanduser().absolute()
    found = read_backup(folder)
    layout = Layout(home.expanduser().absolute())
    made = prepare_home(layout, uid=os.geteuid())
    with locked(layout.up_lock):
        if load_config(layout) is not None:
            raise Conflict(
                f"{layout.home} has a cluster already.",
                hint="Name an empty folder with --data-dir.",
            )
        options = UpOptions(
            home=layout.home,
            nodes=found.nodes,
            dram_bytes=found.dram_bytes,
            cluster=found.cluster,
        )
        config = draft(options, layout, made=made)
        assert isinstance(config.postgres, EmbeddedPostgres), "no other was asked for"
        postgres = prepare_postgres(layout, config.postgres, progress)
        config = msgspec.structs.replace(config, postgres=postgres)
        progress("restoring the history and what follows from it")
        try:
            archive = layout.archive if (folder / "archive").is_dir() else None
            _load(config, postgres, folder / "postgres.dump", layout.log("restore"), archive)
        except BaseException:
            # Its passwords are known to nobody: the next try makes it anew.
            shutil.rmtree(postgres_server.data_folder(postgres))
            raise
        if (folder / "audit").is_dir():
            shutil.copytree(folder / "audit", layout.audit, dirs_exist_ok=True)
        if archive is not None:
            with explained("copy", folder / "archive"):
                shutil.copytree(folder / "archive", archive, dirs_exist_ok=True)
        # The last thing: a home without it is no cluster.
        save_config(layout, config)
    return found


def _load(
    config: ClusterConfig,
    postgres: EmbeddedPostgres,
    dump: Path,
    log: Path,
    archive: Path | None,
) -> None:
    """Runs Postgres for as long as it takes to load the dump; `archive` is where the files with old
    events will be."""
    launch = Launch(
        command=postgres_server.command(postgres),
        environ=postgres_server.environment(),
        folder=postgres.folder,
        log=str(log),
        run_as=postgres.run_as,
        death_signal=signal.SIGINT,
    )
    pid = spawn(launch)
    try:
        _wait_ready(config)
        words = ["--exit-on-error", "--no-owner", "--no-acl", "--single-transaction", str(dump)]
        _run_client(config, "pg_restore", [f"--dbname={postgres_server.DATABASE}", *words])
        if archive is not None:
            quoted = str(archive).replace("'", "''")
            command = f"UPDATE archives SET folder = '{quoted}'"
            _run_client(config, "psql", ["--set=ON_ERROR_STOP=1", f"--command={command}"])
    finally:
        os.kill(pid, signal.SIGINT)
        os.waitpid(pid, 0)


def _wait_ready(config: ClusterConfig) -> None:
    deadline = time.monotonic() + START_S_MAX
    while True:
        try:
            return _run_client(config, "psql", ["--command=SELECT 1"])
        except Unavailable:
            if time.monotonic() > deadline:
                raise
        time.sleep(_PAUSE_S)


def _run_client(config: ClusterConfig, program: str, words: list[str]) -> None:
    """Runs a program of Postgres against the database of a cluster. The password is in its
    environment, where no other user sees it. Raises `Unavailable`, `OutOfCapacity`."""
    path = postgres_server.find_wheel() / "pginstall" / "bin" / program
    done = run_as(
        None, [str(path), *words], cwd=Path("/"), environ=client_environ(config), timeout_s=None
    )
    if done.returncode == 0:
        return
    said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    if "No space left" in done.stderr:
        raise OutOfCapacity(f"The disk is full: {said}.", hint=FULL_HINT)
    raise Unavailable(f"{program} failed: {said}.", hint="Is Postgres up? `tcctl status` says.")


def client_environ(config: ClusterConfig) -> Mapping[str, str]:
    """Where the database of a cluster is, as the programs of Postgres want to be told."""
    parts = urlsplit(config.postgres.url)
    return {
        **postgres_server.environment(),
        "PGHOST": parts.hostname or LOOPBACK,
        "PGPORT": str(parts.port or 5432),
        "PGUSER": unquote(parts.username or postgres_server.ROLE),
        "PGPASSWORD": unquote(parts.password or ""),
        "PGDATABASE": parts.path.lstrip("/") or postgres_server.DATABASE,
    }


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
