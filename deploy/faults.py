"""Errors of the operating system in our words: one sentence and what to do about it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tensorcast.schema.errors import (
    OutOfCapacity,
    PermissionDenied,
    TensorCastError,
    Unavailable,
)

_FULL = (errno.ENOSPC, errno.EDQUOT)
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_PLACE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)
FULL_HINT = "Free some space or choose another folder with --data-dir."


def explain_os_error(error: OSError, *, doing: str, path: Path) -> TensorCastError:
    """The error that a user should see for `error`, met while `doing` something at `path`."""
    where = error.filename if isinstance(error.filename, str) else str(path)
    if error.errno in _FULL:
        return OutOfCapacity(f"The disk is full: cannot {doing} in {where}.", hint=FULL_HINT)
    if error.errno in _DENIED:
        return PermissionDenied(
            f"Not allowed to {doing} in {where}: {error.strerror}.",
            hint="Choose a folder that you may write with --data-dir (or TENSORCAST_HOME).",
        )
    if error.errno in _NO_PLACE:
        return TensorCastError(
            f"Cannot {doing} in {where}: {error.strerror}.",
            hint="Choose another folder with --data-dir (or TENSORCAST_HOME).",
        )
    return Unavailable(f"Cannot {doing} in {where}: {error.strerror or error}.")


@contextmanager
def explained(doing: str, path: Path) -> Iterator[None]:
    """Turn every OSError of the block into a TensorCastError about `path`."""
    try:
        yield
    except OSError as error:
        raise explain_os_error(error, doing=doing, path=path) from error
