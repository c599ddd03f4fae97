"""Whether this machine can run the RDMA guest, and what is said when there is none."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys


class UnavailableError(Exception):
    """There can be no guest here; the sentence says why."""


class BrokenError(Exception):
    """The guest could not be made, or did not come up, although it should."""


def check_machine() -> None:
    """Raises UnavailableError where no guest can run."""
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        raise UnavailableError("User-Mode Linux runs on x86-64 Linux only")
    check_tracing()


def check_tracing() -> None:
    """User-Mode Linux runs its processes by ptrace(2), which some sandboxes forbid. Raises
    UnavailableError."""
    trace_me, emulate, stopped = 0, 31, signal.SIGSTOP
    libc = ctypes.CDLL(None, use_errno=True)
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            if libc.ptrace(trace_me, 0, None, None) == 0:
                os.kill(os.getpid(), stopped)
        os._exit(0)
    _, status = os.waitpid(child, os.WUNTRACED)
    if not os.WIFSTOPPED(status):
        raise UnavailableError("this machine forbids ptrace(2)")
    is_able = libc.ptrace(emulate, child, None, None) == 0
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if not is_able:
        raise UnavailableError("ptrace(2) of this machine cannot emulate system calls")
