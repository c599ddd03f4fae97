"""An engine that ends in good order says so, though its inner processes are killed in the middle.

vLLM's server ends its core by SIGKILL, so nobody in there can say anything. The first process of an
engine (`identity.py`) ends by itself as a rule. It does not know the cluster, but whoever registers
the engine does: that is noted in memory of the first process, which has a program of its own
(`leaving.py`) tell the cluster when it ends. Imports nothing that an engine would have to pay for.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, MutableMapping
from typing import Final

from tensorcast.engines.identity import LIFE_VARIABLE, Identity

NOTE_VARIABLE: Final = "TENSORCAST_ENGINE_NOTE"
"""Where the note is: a path below /proc, for the processes of this machine."""
LEAVER: Final = "tensorcast.engines.leaving"
LEAVE_S_MAX: Final = 5.0
NOTE_BYTES_MAX: Final = 1 << 20


def expect_end(engine: Identity, environ: MutableMapping[str, str]) -> None:
    """In the first process of an engine: what is noted will be told when this process ends.
    Modifies the environment, for the processes that it starts."""
    note = os.memfd_create(_name_of(engine.life))
    environ[NOTE_VARIABLE] = f"/proc/{os.getpid()}/fd/{note}"
    atexit.register(tell_end, note, os.getpid())


def write_note(content: bytes, environ: Mapping[str, str]) -> bool:
    """In any process of the engine: notes what the leaver needs to know. False when the first
    process is not on this machine, or is none of ours."""
    path = environ.get(NOTE_VARIABLE, "")
    wanted = f"/memfd:{_name_of(environ.get(LIFE_VARIABLE, ''))} (deleted)"
    with contextlib.suppress(OSError):
        if path and os.readlink(path) == wanted:  # elsewhere that path is another's file
            with open(path, "wb") as note:
                note.write(content)
            return True
    return False


def tell_end(note: int, process: int) -> None:
    """Has the leaver tell what was noted, if anything was, and waits some seconds for it. Does
    nothing in a child that `process` forked."""
    if os.getpid() != process:
        return
    content = os.pread(note, NOTE_BYTES_MAX, 0)
    if not content:
        return
    environ = {**os.environ, "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-m", LEAVER]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(command, input=content, env=environ, timeout=LEAVE_S_MAX, check=False)


def _name_of(life: str) -> str:
    return f"tensorcast-engine-{life}"
