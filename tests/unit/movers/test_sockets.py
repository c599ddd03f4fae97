"""Who may use a mover, under which names, and where others find its data port."""

from __future__ import annotations

import os
import socket

import pytest

from tensorcast.movers.membership import advertise
from tensorcast.movers.sockets import check_actor, is_allowed
from tensorcast.schema.errors import InvalidArgument

NOBODY = 65534


def test_the_same_user_and_root_are_allowed():
    assert is_allowed(os.geteuid(), NOBODY)
    assert is_allowed(0, 0)


def test_strangers_are_not():
    stranger = 54321 if os.geteuid() != 54321 else 54322
    assert not is_allowed(stranger, stranger)


def test_users_have_names():
    check_actor("user:ada@desk")
    check_actor("engine:vllm-0")


@pytest.mark.parametrize(
    "actor", ["", "x" * 257, "user:\n", "mover:n1", "policy:evict", "controlplane", "timers"]
)
def test_nobody_acts_as_the_cluster_itself(actor: str):
    with pytest.raises(InvalidArgument):
        check_actor(actor)


@pytest.mark.parametrize(
    ("address", "host", "expected"),
    [
        ("127.0.0.1:7", None, "127.0.0.1:7"),
        ("[::1]:7", None, "[::1]:7"),
        ("127.0.0.1:7", "n1.example", "n1.example:7"),
        ("0.0.0.0:7", "fe80::1", "[fe80::1]:7"),
        ("0.0.0.0:7", None, f"{socket.gethostname()}:7"),
        ("[::]:7", None, f"{socket.gethostname()}:7"),
    ],
)
def test_others_are_told_an_address_that_works(address: str, host: str | None, expected: str):
    assert advertise(address, host) == expected
