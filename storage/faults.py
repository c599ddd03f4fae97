"""Errors of the operating system as ours: one sentence, with the path and what to do."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import Final

from tensorcast.schema.errors import (
    InvalidArgument,
    NotFound,
    PermissionDenied,
    TensorCastError,
    Unavailable,
)

_BROKEN: Final = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EREMOTEIO, errno.ENODEV)


@contextlib.contextmanager
def told(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turns every OSError of a read inside into one of ours."""
    try:
        yield
    except OSError as error:
        raise explain_read(error, os.fspath(path)) from error


def explain_read(error: OSError, path: str) -> TensorCastError:
    """What an error means for whoever wanted to read `path`."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return NotFound(f"There is no file {path}.")
    if isinstance(error, PermissionError):
        return PermissionDenied(f"{path} cannot be read.", hint="Check its permissions.")
    if error.errno in _BROKEN:
        return Unavailable(
            f"{path} cannot be read: {error.strerror}.", hint="Check the disk or its server."
        )
    return InvalidArgument(f"{path} cannot be read: {error.strerror}.")
