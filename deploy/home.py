"""The home folder of an embedded cluster: what lies where, who may see it, what purge deletes.

Never changes the permissions of a folder that it has not just made itself.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tensorcast.deploy.faults import explained
from tensorcast.deploy.machine import format_bytes, free_disk_bytes
from tensorcast.deploy.options import FORMAT, ClusterConfig
from tensorcast.schema.errors import (
    Conflict,
    InvalidArgument,
    OutOfCapacity,
    PermissionDenied,
    Unavailable,
)

SOCKET_PATH_BYTES_MAX = 100
# The longest names in the sockets folder: "controlplane.notify" and "n64.sock".
SOCKET_NAME_BYTES_MAX = 20
FREE_DISK_BYTES_MIN = 256 * 1024 * 1024
# Less than this, and the servers cannot even begin. A `down` leaves them so much.
SERVERS_DISK_BYTES_MIN = 32 * 1024 * 1024
LOCK_WAIT_S = 90.0

_OURS = ("nats", "postgres", "nodes", "audit", "keys", "logs", "run", "cluster.json", "lost+found")


@dataclass(frozen=True)
class Layout:
    """Where the parts of a home lie."""

    home: Path

    @property
    def config(self) -> Path:
        return self.home / "cluster.json"

    @property
    def nats(self) -> Path:
        return self.home / "nats"

    @property
    def postgres(self) -> Path:
        return self.home / "postgres"

    @property
    def keys(self) -> Path:
        """The secret keys of the cluster's identities, one file each."""
        return self.home / "keys"

    def key(self, identity: str) -> Path:
        return self.keys / f"{identity}.nk"

    @property
    def nodes(self) -> Path:
        return self.home / "nodes"

    @property
    def audit(self) -> Path:
        """The key and the file of the log's signed heads."""
        return self.home / "audit"

    @property
    def archive(self) -> Path:
        """Old events of the history, in files."""
        return self.home / "archive"

    @property
    def logs(self) -> Path:
        return self.home / "logs"

    @property
    def run(self) -> Path:
        return self.home / "run"

    @property
    def supervisor_lock(self) -> Path:
        """Holds the pid of the supervisor, which keeps it locked while it lives."""
        return self.run / "supervisor.pid"

    @property
    def up_lock(self) -> Path:
        """Held by one `up` or `down` at a time."""
        return self.run / "up.lock"

    @property
    def children(self) -> Path:
        """The processes that the supervisor has started, for the day when it is gone."""
        return self.run / "children.json"

    def log(self, service: str) -> Path:
        return self.logs / f"{service}.log"


def default_home(environ: Mapping[str, str], *, uid: int) -> Path:
    """`$TENSORCAST_HOME`, else /var/lib/tensorcast for root, else ~/.local/share/tensorcast."""
    named = environ.get("TENSORCAST_HOME")
    if named:
        return Path(named).expanduser().absolute()
    if uid == 0:
        return Path("/var/lib/tensorcast")
    data = environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser().absolute() / "tensorcast"


def home_key(home: Path) -> str:
    """A short name that is different for every home."""
    return hashlib.sha256(os.fsencode(home)).hexdigest()[:12]


def choose_sockets(home: Path, *, uid: int) -> Path:
    """The folder for sockets: inside the home, or a short one when paths would be too long."""
    run = home / "run"
    if len(os.fsencode(run)) + 1 + SOCKET_NAME_BYTES_MAX <= SOCKET_PATH_BYTES_MAX:
        return run
    return Path("/tmp") / f"tensorcast-{uid}-{home_key(home)}"


def make_folder(path: Path, mode: int) -> bool:
    """Make a folder with exactly this mode; one that exists is left as it is.

    Returns whether it was made.
    """
    with explained("make a folder", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.mkdir(mode=mode)
        except FileExistsError:
            if not path.is_dir():
                raise NotADirectoryError(20, "it is not a folder", str(path)) from None
            return False
        path.chmod(mode)  # the umask may have taken bits away
    return True


def make_private_folder(path: Path) -> None:
    """Make or accept a 0700 folder of ours in a place where others may write as well.

    Raises `PermissionDenied` when somebody else made it first.
    """
    make_folder(path, 0o700)
    found = path.lstat()
    private = stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) & 0o077 == 0
    if not private or found.st_uid != os.geteuid():
        raise PermissionDenied(
            f"{path} is not a private folder of ours.", hint="Remove it, or ask its owner to."
        )


def prepare_home(layout: Layout, *, uid: int) -> bool:
    """Make the home and its folders; returns whether the home itself was made now.

    Raises `InvalidArgument` for a folder with foreign content, `OutOfCapacity` when the disk
    is nearly full and `PermissionDenied` when the home cannot be written.
    """
    # Root's Postgres runs as another user and has to get through the home to its data.
    made = make_folder(layout.home, 0o755 if uid == 0 else 0o700)
    _check_content(layout)
    _check_room(layout)
    make_folder(layout.postgres, 0o755 if uid == 0 else 0o700)
    for folder in (layout.run, layout.logs, layout.nats, layout.nodes, layout.audit, layout.keys):
        make_folder(folder, 0o700)
    if not os.access(layout.home, os.W_OK | os.X_OK):
        raise PermissionDenied(
            f"Not allowed to write in {layout.home}.", hint="Choose another --data-dir."
        )
    return made


def _check_room(layout: Layout) -> None:
    """A cluster that is there already may start on a disk that has become small: what its movers
    have written in `down` is most of it, and goes away once they have read it."""
    needed = SERVERS_DISK_BYTES_MIN if layout.config.exists() else FREE_DISK_BYTES_MIN
    free = free_disk_bytes(layout.home)
    if free < needed:
        raise OutOfCapacity(
            f"The disk of {layout.home} has only {format_bytes(free)} left.",
            hint=f"A cluster needs {format_bytes(needed)} to start: free some space.",
        )


def _check_content(layout: Layout) -> None:
    with explained("look", layout.home):
        names = os.listdir(layout.home)
    foreign = sorted(set(names) - set(_OURS))
    if foreign and not layout.config.exists():
        raise InvalidArgument(
            f"{layout.home} is not empty and not the home of a cluster (it holds {foreign[0]!r}).",
            hint="Choose an empty or new folder with --data-dir.",
        )


def write_private(path: Path, data: bytes) -> None:
    """Replace a file by one of mode 0600, in one step and on disk when it returns. Of several that
    write it at once the last one counts."""
    with explained("write", path):
        descriptor, fresh = tempfile.mkstemp(prefix=f"{path.name}.", suffix=".new", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(fresh, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(fresh)
            raise


def save_config(layout: Layout, config: ClusterConfig) -> None:
    """Write `cluster.json`."""
    text = msgspec.json.format(msgspec.json.encode(config), indent=2)
    write_private(layout.config, text + b"\n")


def load_config(layout: Layout) -> ClusterConfig | None:
    """Read `cluster.json`; None when there is none.

    Raises `InvalidArgument` when it is damaged or of a newer version.
    """
    with explained("read", layout.config):
        try:
            data = layout.config.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
    try:
        config = msgspec.json.decode(data, type=ClusterConfig)
    except msgspec.DecodeError as error:
        raise InvalidArgument(
            f"{layout.config} is damaged: {error}.", hint="Restore it from a copy, or move it away."
        ) from error
    if config.format > FORMAT:
        raise InvalidArgument(
            f"{layout.config} was written by a newer TensorCast.", hint="Upgrade this one."
        )
    return config


@contextmanager
def locked(path: Path, *, wait_s: float = LOCK_WAIT_S) -> Iterator[None]:
    """Hold the lock of one `up` or `down` at a time.

    Raises `Conflict` when another one holds it for longer than `wait_s`.
    """
    with explained("lock", path), path.open("a") as file:
        if not acquire(file.fileno(), wait_s=wait_s):
            raise Conflict(
                f"Another `tcctl up` or `down` is at work on {path.parent.parent}.",
                hint="Wait for it to end.",
            )
        if not path.exists() or path.stat().st_ino != os.fstat(file.fileno()).st_ino:
            raise Conflict(
                f"{path.parent.parent} was deleted by another `tcctl down`.", hint="Try again."
            )
        yield


def acquire(descriptor: int, *, wait_s: float) -> bool:
    """Take the exclusive lock of an open file within `wait_s`; returns whether it was got."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)
        else:
            return True


def is_locked(path: Path) -> bool:
    """Whether some process holds the lock of this file now."""
    try:
        with path.open("r+") as file:
            return not acquire(file.fileno(), wait_s=0)
    except FileNotFoundError:
        return False
    except PermissionError as error:
        raise PermissionDenied(
            f"Not allowed to look at {path}.", hint="The cluster belongs to another user."
        ) from error


def delete_home(layout: Layout, config: ClusterConfig) -> None:
    """Delete what a cluster has made on disk, and nothing else. Safe to repeat.

    Raises `Unavailable` when something could not be deleted.
    """
    with explained("delete", layout.home):
        sockets = Path(config.sockets)
        if sockets != layout.run and sockets.name.endswith(home_key(layout.home)):
            _delete_tree(sockets)
        for name in ("nodes", "nats", "postgres", "audit", "logs", "run", "keys"):
            _delete_tree(layout.home / name)
        layout.config.unlink(missing_ok=True)
        for draft in layout.home.glob(f"{layout.config.name}.*.new"):
            draft.unlink(missing_ok=True)  # of an `up` that was killed as it wrote
        if config.home_is_ours:
            with suppress(OSError):  # the user's own files may lie beside ours
                layout.home.rmdir()


def _delete_tree(path: Path) -> None:
    if path.is_symlink():
        raise Unavailable(f"{path} is a link: it was not made by TensorCast.", hint="Remove it.")
    with suppress(FileNotFoundError):
        shutil.rmtree(path)
