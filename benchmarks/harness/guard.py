"""Whatever ends a run, nothing of it stays: processes that carry its mark are found and killed.

Everything that a run starts has the run's own folder in its environment, its arguments or as its
working folder, also what detaches itself. A small process of its own waits on a pipe for the end of
the harness, by whatever signal, then ends what is left and deletes the folder.

    python -P -m harness.guard FOLDER

Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

VARIABLE = "TENSORCAST_BENCH_RUN"
PREFIX = "tensorcast-bench-"
END_S_MAX = 20.0


@contextlib.contextmanager
def guarded_folder() -> Iterator[Path]:
    """A folder for one run that others may enter; with the run, all that carries its name ends."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    folder.chmod(0o755)  # the embedded Postgres of root runs as somebody else
    guard = subprocess.Popen(
        [sys.executable, "-P", "-m", "harness.guard", str(folder)],
        stdin=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent)},
    )
    try:
        yield folder
    finally:
        guard.stdin.close()
        guard.wait()


def find_marked(mark: str) -> list[int]:
    """The processes that carry the mark, without this one."""
    others = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return [pid for pid in others if pid != os.getpid() and mark in describe(pid)]


def describe(pid: int) -> str:
    """Arguments, environment and working folder of a process; "" for one that is gone."""
    text = ""
    for file in ("cmdline", "environ"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/{file}", errors="replace") as read:
            text += read.read()
    with contextlib.suppress(OSError):
        text += os.readlink(f"/proc/{pid}/cwd")
    return text


def end_marked(mark: str) -> None:
    """Kills them until there is none: a supervisor may start others before it dies itself."""
    deadline = time.monotonic() + END_S_MAX
    while (left := find_marked(mark)) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def main() -> None:
    """Waits for the end of the harness, then ends what it left."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.stdin.buffer.read()
    mark = sys.argv[1]
    if os.path.basename(mark).startswith(PREFIX):
        end_marked(mark)
        shutil.rmtree(mark, ignore_errors=True)


if __name__ == "__main__":
    main()
