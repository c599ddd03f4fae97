"""A worker process and the calls to it: one JSON object a line, over its standard streams.

Standard library only. What a worker or its libraries print goes to the log, never into an answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

END_S = 10.0


class WorkerError(Exception):
    """A worker has failed, or does not answer; says which and why."""


class Remote:
    """One worker: `module:Class` of the benchmarks folder, run by an interpreter. Its methods are
    called by name. Closing it ends the process; what it started itself, it ends itself. One that
    `is_lost` has ended, or has not answered in time: it is not asked again."""

    def __init__(
        self,
        worker: str,
        *,
        python: str = sys.executable,
        environ: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
        log: str = os.devnull,
    ) -> None:
        self.worker = worker
        self.is_lost = False
        self._rest = b""
        with open(log, "ab") as output:
            self._process = subprocess.Popen(
                [python, "-P", "-m", "harness.worker", worker],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=dict(os.environ if environ is None else environ),
                pass_fds=tuple(descriptors),
            )
        self.pid = self._process.pid

    def call(self, name: str, timeout_s: float = 120.0, **arguments: object) -> object:
        """The answer of one method. Raises WorkerError."""
        self.post(name, **arguments)
        return self.wait(timeout_s)

    def post(self, name: str, **arguments: object) -> None:
        """Asks and does not wait; `wait` fetches the answer. Raises WorkerError."""
        line = json.dumps({"call": name, "with": arguments}).encode() + b"\n"
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except OSError as error:
            self.is_lost = True
            raise WorkerError(f"{self.worker} has ended ({self._process.poll()}).") from error

    def wait(self, timeout_s: float = 120.0) -> object:
        """The answer to what was posted. Raises WorkerError."""
        answer = json.loads(self._read_line(time.monotonic() + timeout_s))
        if "error" in answer:
            raise WorkerError(f"{self.worker}: {answer['error']}")
        return answer["answer"]

    def _read_line(self, deadline: float) -> bytes:
        pipe = self._process.stdout.fileno()
        while b"\n" not in self._rest:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                self.is_lost = True
                raise WorkerError(f"{self.worker} did not answer in time.")
            piece = os.read(pipe, 1 << 16)
            if not piece:
                self.is_lost = True
                raise WorkerError(f"{self.worker} has ended ({self._process.wait(END_S)}).")
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def close(self, timeout_s: float = END_S) -> None:
        """Lets the worker end in good order, or kills it. Safe to repeat."""
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(0.0 if self.is_lost else timeout_s)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
