"""Runs scripts, each in a process of its own that has torch already: importing it takes longer than
most examples do. `python script_host.py` is the process that they are forked from."""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Ended:
    """How a script ended, and what it printed."""

    code: int
    out: str
    err: str


class ScriptHost:
    """Starts scripts one by one. `folder` is where their output is kept."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process = process
        self._folder = folder

    def run(self, *command: str, environ: Mapping[str, str]) -> Ended:
        """Runs a script with its arguments, as `python SCRIPT ARGUMENT...` would."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        out, err = self._folder / "out", self._folder / "err"
        request = {"command": command, "environ": dict(environ), "outputs": [str(out), str(err)]}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        return Ended(code, out.read_text(), err.read_text())


@contextlib.contextmanager
def script_host(folder: Path) -> Iterator[ScriptHost]:
    """A host that ends with the context."""
    command = [sys.executable, "-P", __file__]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        yield ScriptHost(process, folder)


def serve() -> None:
    """Forks a process for each line of standard input; it returns in those processes too, when
    their script has ended."""
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if not child:
            become(request["command"], request["environ"], request["outputs"])
            return
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def become(command: list[str], environ: dict[str, str], outputs: list[str]) -> None:
    """This process is the script from now on. What it raises is left to the interpreter."""
    for descriptor, path in ((0, os.devnull), (1, outputs[0]), (2, outputs[1])):
        flags = os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.environ.clear()
    os.environ.update(environ)
    sys.argv = list(command)
    runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    import numpy  # noqa: F401
    import safetensors.torch  # noqa: F401  (with torch)

    import tensorcast  # noqa: F401

    serve()
