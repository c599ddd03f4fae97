"""Errors of the operating system in our words."""

import errno
from pathlib import Path

import pytest

from tensorcast.deploy.faults import explain_os_error, explained
from tensorcast.schema.errors import OutOfCapacity, PermissionDenied, TensorCastError, Unavailable


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, OutOfCapacity),
        (errno.EDQUOT, OutOfCapacity),
        (errno.EACCES, PermissionDenied),
        (errno.EROFS, PermissionDenied),
        (errno.EIO, Unavailable),
        (errno.ENOENT, TensorCastError),
        (errno.ENOTDIR, TensorCastError),
    ],
)
def test_kinds(number, kind):
    error = explain_os_error(OSError(number, "why"), doing="write", path=Path("/d"))
    assert type(error) is kind
    assert "/d" in error.message


def test_the_file_is_named_rather_than_its_folder():
    with pytest.raises(PermissionDenied, match="/d/file"), explained("write", Path("/d")):
        raise PermissionError(errno.EACCES, "Permission denied", "/d/file")
