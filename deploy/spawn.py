"""Start one service: fork, become what it has to be, exec.

Written out instead of `subprocess` because the order matters: PR_SET_PDEATHSIG is lost when the
user changes, LISTEN_PID is only known in the child, and the kept descriptors must land on 3, 4, ...
whatever numbers they have here. Call it from the main thread: the death signal is that of the
thread that forks.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import pwd
import signal
from collections.abc import Mapping
from typing import Final, NoReturn

import msgspec

PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36
FIRST_FD: Final = 3
CANNOT_RUN: Final = 127

# Loaded before any fork: a child must not load libraries.
_libc = ctypes.CDLL(None, use_errno=True)


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """All that the child needs to know."""

    command: tuple[str, ...]
    environ: dict[str, str]
    folder: str
    log: str
    run_as: str | None = None
    death_signal: int = signal.SIGTERM
    descriptors: tuple[tuple[str, int], ...] = ()


def become_subreaper() -> None:
    """Make orphans of our children our own, so that no zombie is left behind."""
    if _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot become the reaper of orphans")


def listen_environ(
    environ: Mapping[str, str], names: tuple[str, ...], *, pid: int
) -> dict[str, str]:
    """The environment with the kept descriptors announced in it."""
    if not names:
        return dict(environ)
    return {
        **environ,
        "LISTEN_FDS": str(len(names)),
        "LISTEN_FDNAMES": ":".join(names),
        "LISTEN_PID": str(pid),
    }


def spawn(launch: Launch) -> int:
    """Start a process and return its pid. A child that cannot run says why in its log and
    ends with status 127."""
    parent = os.getpid()
    account = pwd.getpwnam(launch.run_as) if launch.run_as else None
    # A signal between fork and exec would run our handlers in the child.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _become(launch, account, parent)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pid


def _become(launch: Launch, account: pwd.struct_passwd | None, parent: int) -> NoReturn:
    try:
        _reset_signals()
        _redirect(launch.log)
        os.setsid()
        if account is not None:
            os.setgroups([])
            os.setgid(account.pw_gid)
            os.setuid(account.pw_uid)
        _libc.prctl(PR_SET_PDEATHSIG, launch.death_signal, 0, 0, 0)
        if os.getppid() != parent:  # it died before we asked to be told
            os._exit(CANNOT_RUN)
        os.chdir(launch.folder)
        _place([descriptor for _, descriptor in launch.descriptors])
        names = tuple(name for name, _ in launch.descriptors)
        environ = listen_environ(launch.environ, names, pid=os.getpid())
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execvpe(launch.command[0], launch.command, environ)
    except BaseException as error:  # nothing may escape into the parent's code
        os.write(2, f"cannot run {launch.command[0]}: {error}\n".encode())
    finally:
        os._exit(CANNOT_RUN)


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)


def _redirect(log: str) -> None:
    quiet = os.open(os.devnull, os.O_RDONLY)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(quiet, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)


def _place(descriptors: list[int]) -> None:
    """Move the descriptors to 3, 4, ... and close every other one."""
    past = FIRST_FD + len(descriptors)
    # First out of the way of each other, then into place.
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, past) for descriptor in descriptors]
    for place, descriptor in enumerate(moved, FIRST_FD):
        os.dup2(descriptor, place, inheritable=True)
    os.closerange(past, os.sysconf("SC_OPEN_MAX"))
