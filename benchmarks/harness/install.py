"""The environments of the peers: one for each requirement file in `peers/`, in a cache folder.

Each sees the packages of our own environment (torch above all) behind its own, by one line in a
`.pth` file: nothing big is there twice. Requirement files are whole lists of pinned packages,
installed without resolving, since several peers pin a torch of their own. What is installed is
stamped with the list it came from, so that an install that was interrupted goes on where it was.

Programs and libraries that no wheel has (iperf3, redis-server, libibverbs) are Debian packages that
are downloaded and unpacked into the cache folder: nothing of the system is changed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path

PEERS = Path(__file__).resolve().parent.parent / "peers"
BENCHMARKS = PEERS.parent
DEBIAN = "debian"
INSTALL_S_MAX = 1800


class Environments:
    """Where the peers are, and how a worker of each is started."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache

    def folder(self, name: str) -> Path:
        """The environment of a peer; for Debian packages, where they are unpacked."""
        return self.cache / DEBIAN if name == DEBIAN else self.cache / "environments" / name

    def python(self, name: str) -> str:
        """The interpreter of a peer; our own for ""."""
        return str(self.folder(name) / "bin" / "python") if name else sys.executable

    def environ(self, name: str) -> dict[str, str]:
        """The variables of a worker."""
        libraries = self.folder(DEBIAN) / "usr" / "lib" / f"{os.uname().machine}-linux-gnu"
        found = {**os.environ, "PYTHONPATH": str(BENCHMARKS), "PYTHONSAFEPATH": "1"}
        if name:
            found["LD_LIBRARY_PATH"] = str(libraries)
            found.setdefault("BENCH_TORCHSTORE", str(self.cache / "torchstore"))
            found["PATH"] = f"{self.folder(name) / 'bin'}:{os.environ.get('PATH', '')}"
        return found

    def missing(self, name: str) -> str:
        """Why workers of a peer cannot run; "" when they can."""
        if not name or self.is_installed(name):
            return ""
        failure = self.folder(name) / "failure"
        if failure.exists():
            return f"it cannot be installed here: {failure.read_text().strip()}"
        return f"not installed; `scripts/bench --install {name}` does it"

    def is_installed(self, name: str) -> bool:
        """Whether it is there, in the versions of its requirement file."""
        stamp = self.folder(name) / "installed"
        return stamp.exists() and stamp.read_text() == requirements(name).read_text()

    def install(self, names: Sequence[str], say: Callable[[str], None]) -> list[str]:
        """Installs what is missing of the named ones; returns the names of those that failed."""
        failed = []
        for name in names:
            if self.is_installed(name):
                say(f"{name} is installed")
                continue
            say(f"installing {name}")
            failure = self.folder(name) / "failure"
            try:
                install_one(name, self.folder(name))
            except (OSError, subprocess.SubprocessError) as error:
                failure.parent.mkdir(parents=True, exist_ok=True)
                failure.write_text(explain(error))
                say(f"{name} cannot be installed: {explain(error)}")
                failed.append(name)
            else:
                failure.unlink(missing_ok=True)
                (self.folder(name) / "installed").write_text(requirements(name).read_text())
        return failed


def known_peers() -> list[str]:
    """The names of all environments; Debian packages first, others need their libraries."""
    names = sorted(path.stem for path in PEERS.glob("*.txt"))
    return sorted(names, key=lambda name: name != DEBIAN)


def requirements(name: str) -> Path:
    """The list of packages of an environment."""
    return PEERS / f"{name}.txt"


def install_one(name: str, folder: Path) -> None:
    """Raises OSError or subprocess.SubprocessError."""
    folder.mkdir(parents=True, exist_ok=True)
    if name == DEBIAN:
        unpack_debian(folder)
        return
    python = folder / "bin" / "python"
    if not python.exists():
        run([sys.executable, "-m", "venv", str(folder)])
    run([str(python), "-m", "pip", *PIP, "-r", str(requirements(name))])
    ours = sysconfig.get_path("purelib")
    theirs = run([str(python), "-P", "-c", "import sysconfig as s; print(s.get_path('purelib'))"])
    (Path(theirs.strip()) / "ours.pth").write_text(f"{ours}\n")


PIP = ("install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile")


def unpack_debian(folder: Path) -> None:
    """Downloads the packages with apt and unpacks them beside each other."""
    if not shutil.which("apt-get"):
        raise OSError("there is no apt-get on this machine")
    names = requirements(DEBIAN).read_text().split()
    downloads = folder / "downloads"
    downloads.mkdir(exist_ok=True)
    run(["apt-get", "download", "--quiet", *names], cwd=downloads)
    for package in sorted(downloads.glob("*.deb")):
        run(["dpkg", "--extract", str(package), str(folder)])
    shutil.rmtree(downloads)


def run(command: Sequence[str], cwd: Path | None = None) -> str:
    """What a command prints. Raises subprocess.SubprocessError."""
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, check=True, timeout=INSTALL_S_MAX
    )
    return done.stdout


def explain(error: Exception) -> str:
    """The last line that says something."""
    text = getattr(error, "stderr", None) or str(error)
    lines = [line.strip() for line in str(text).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__
