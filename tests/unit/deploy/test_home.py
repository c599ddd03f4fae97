"""Where things lie."""

import os
import threading
from pathlib import Path

import pytest

from tensorcast.deploy.home import (
    SOCKET_NAME_BYTES_MAX,
    SOCKET_PATH_BYTES_MAX,
    choose_sockets,
    default_home,
    home_key,
    write_private,
)
from tensorcast.schema.errors import TensorCastError


@pytest.mark.parametrize(
    ("environ", "uid", "expected"),
    [
        ({"TENSORCAST_HOME": "/data/tc"}, 0, "/data/tc"),
        ({}, 0, "/var/lib/tensorcast"),
        ({"XDG_DATA_HOME": "/d"}, 1000, "/d/tensorcast"),
        ({"XDG_DATA_HOME": "/d"}, 0, "/var/lib/tensorcast"),
    ],
)
def test_default_home(environ, uid, expected):
    assert default_home(environ, uid=uid) == Path(expected)


def test_a_short_home_keeps_its_sockets():
    assert choose_sockets(Path("/var/lib/tensorcast"), uid=0) == Path("/var/lib/tensorcast/run")


@pytest.mark.parametrize("home", [Path("/" + "a" * 90), Path("/" + "ä" * 40)])
def test_sockets_of_a_long_home_are_short_and_its_own(home):
    sockets = choose_sockets(home, uid=1000)
    longest = len(os.fsencode(sockets)) + 1 + SOCKET_NAME_BYTES_MAX
    assert longest <= SOCKET_PATH_BYTES_MAX
    assert sockets.name.endswith(home_key(home))
    assert sockets != choose_sockets(home / "b", uid=1000)


def test_many_who_write_one_file_do_not_disturb_each_other(tmp_path):
    """As several `up` of several homes do with the context in use."""
    path, errors = tmp_path / "current", []
    begin = threading.Barrier(8)

    def write(number):
        begin.wait()
        try:
            for _ in range(20):
                write_private(path, b"%d" % number * 1000)
        except TensorCastError as error:
            errors.append(error)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert not errors
    assert len(set(path.read_bytes())) == 1
    assert len(path.read_bytes()) == 1000
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["current"]
