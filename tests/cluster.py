"""A whole embedded cluster for tests, driven as a user drives it: by `tcctl` and by the SDK."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

TCCTL = str(Path(sys.executable).with_name("tcctl"))
COMMAND_TIMEOUT_S = 110


@dataclass(frozen=True)
class Finished:
    """What a command left behind."""

    code: int
    out: str
    err: str

    def json(self) -> object:
        return json.loads(self.out)


@dataclass(frozen=True)
class Cluster:
    """A running cluster in a folder of its own."""

    home: Path
    env: Mapping[str, str]

    def tcctl(self, *words: str, code: int | None = 0) -> Finished:
        """Runs one command; fails the test when it exits with another code than `code`."""
        done = subprocess.run(
            [TCCTL, *words],
            env=dict(self.env),
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        finished = Finished(done.returncode, done.stdout, done.stderr)
        assert code is None or finished.code == code, (words, finished)
        return finished

    def ask(self, *words: str) -> object:
        """The JSON answer of one command."""
        return self.tcctl(*words, "-o", "json").json()

    def up(self, nodes: int) -> Finished:
        return self.tcctl("up", "--nodes", str(nodes), "--data-dir", str(self.home), "--dram", DRAM)

    def pid(self, service: str) -> int:
        """The process of a service by its name in `tcctl status`."""
        status = json.loads(self.tcctl("status", "-o", "json", code=None).out)
        for known in status["services"]:
            if known["name"] == service:
                return int(known["pid"])
        raise AssertionError(f"{service} is not among {status['services']}")

    def kill(self, service: str) -> int:
        """kill -9 of one service; returns the pid that died."""
        pid = self.pid(service)
        os.kill(pid, signal.SIGKILL)
        return pid

    def wait_healthy(self, timeout_s: float = 40.0) -> None:
        """Waits until `tcctl status` says that all is up."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            done = self.tcctl("status", "-o", "json", code=None)
            if done.code == 0 and json.loads(done.out)["state"] == "up":
                return
            time.sleep(0.2)
        raise AssertionError(self.tcctl("status", code=None))


DRAM = "4GiB"


@contextmanager
def running_cluster(folder: Path, nodes: int, **environ: str) -> Iterator[Cluster]:
    """Starts a cluster under `folder`, with these settings, and takes it away again with all that
    it wrote."""
    env = {
        **os.environ,
        "TENSORCAST_CONFIG_DIR": str(folder / "config"),
        "TENSORCAST_HOME": str(folder / "home"),
        "PYTHONSAFEPATH": "1",
        **environ,
    }
    cluster = Cluster(folder / "home", env)
    cluster.up(nodes)
    try:
        yield cluster
    finally:
        cluster.tcctl("down", "--data-dir", str(cluster.home), "--purge", "--yes", code=None)
