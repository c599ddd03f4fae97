"""Errors of the operating system, in our words."""

from __future__ import annotations

import errno
import os

import pytest

from tensorcast.schema.errors import InvalidArgument, NotFound, PermissionDenied, Unavailable
from tensorcast.storage.faults import told


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOENT, NotFound),
        (errno.ENOTDIR, NotFound),
        (errno.EACCES, PermissionDenied),
        (errno.EIO, Unavailable),
        (errno.ESTALE, Unavailable),
        (errno.EISDIR, InvalidArgument),
    ],
)
def test_every_error_names_the_path(number, kind):
    with pytest.raises(kind) as caught, told("some/path"):
        raise OSError(number, os.strerror(number))
    assert "some/path" in caught.value.message
