"""Exit codes, and which error has which. Pure."""

from __future__ import annotations

from enum import IntEnum

from tensorcast.schema.errors import (
    Conflict,
    InvalidArgument,
    NotFound,
    TensorCastError,
    Timeout,
    Unavailable,
)


class Exit(IntEnum):
    """What the caller of `tcctl` learns from its exit code."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    TIMED_OUT = 5
    UNREACHABLE = 6
    INTERRUPTED = 130


class Failed(TensorCastError):
    """The work was done and came out badly: an operation failed, a check found damage."""

    code = "failed"


class Usage(InvalidArgument):
    """The command line makes no sense."""

    code = "usage"


_EXITS: tuple[tuple[type[TensorCastError], Exit], ...] = (
    (NotFound, Exit.NOT_FOUND),
    (Conflict, Exit.CONFLICT),
    (Timeout, Exit.TIMED_OUT),
    (Unavailable, Exit.UNREACHABLE),
    (InvalidArgument, Exit.USAGE),
)


def exit_of(error: TensorCastError) -> Exit:
    """The exit code that an error leads to. One that names an operation tells how that ended, so
    it counts as a failure of the work, whatever went wrong on its node."""
    if error.operation is not None and isinstance(error, Unavailable | InvalidArgument):
        return Exit.FAILED
    for kind, code in _EXITS:
        if isinstance(error, kind):
            return code
    return Exit.FAILED
