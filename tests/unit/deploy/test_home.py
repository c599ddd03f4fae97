"""Where things lie."""

import os
from pathlib import Path

import pytest

from tensorcast.deploy.home import (
    SOCKET_NAME_BYTES_MAX,
    SOCKET_PATH_BYTES_MAX,
    choose_sockets,
    default_home,
    home_key,
)


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
