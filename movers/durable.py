"""Files that are either there as a whole or not at all, and errors of the file system in words."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from tensorcast.schema.errors import (
    OutOfCapacity,
    PermissionDenied,
    TensorCastError,
    Unavailable,
)

TEMPORARY_PREFIX = ".writing-"
"""Names of files and folders that a crash may leave behind; nobody reads them."""

_WRITE_BYTES = 8 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)


def explain(error: OSError, path: Path, action: str) -> TensorCastError:
    """The error of the file system as one of ours; `action` is what failed ("write")."""
    if error.errno in _FULL:
        return OutOfCapacity(
            f"The disk is full: cannot {action} {path}.",
            hint="Free space there, or give the mover another data folder.",
        )
    if error.errno in _DENIED:
        return PermissionDenied(
            f"Not allowed to {action} {path}: {error.strerror}.",
            hint="The mover's user needs the right to write there.",
        )
    return Unavailable(f"Cannot {action} {path}: {error.strerror}.")


@contextlib.contextmanager
def explained(path: Path, action: str) -> Iterator[None]:
    """Turns every OSError inside into one of ours."""
    try:
        yield
    except OSError as error:
        raise explain(error, path, action) from error


def write_all(fd: int, content: bytes | memoryview, position: int) -> int:
    """Writes all of `content` at `position`; returns the position after it."""
    view = memoryview(content)
    while view.nbytes:
        written = os.pwrite(fd, view[:_WRITE_BYTES], position)
        position += written
        view = view[written:]
    return position


def write_file(path: Path, content: bytes) -> None:
    """Writes a whole file, durably. Not atomic: for files in a folder that is renamed later."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        write_all(fd, content, 0)
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def remove_leftovers(folder: Path) -> None:
    """Removes what a crash in the middle of a write left behind in `folder`."""
    for path in folder.glob(f"{TEMPORARY_PREFIX}*"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
