"""Who is none of ours at the shm socket: the connection is closed, and one line says why."""

from __future__ import annotations

import ctypes
import os
import platform
import secrets
import socket
import threading
from collections.abc import Iterator

import pytest

from conformance.contents import Shelf
from conformance.transport import PEER
from tensorcast.movers.transports.shm import wire
from tensorcast.movers.transports.shm.server import ShmServer

SETRESUID = {"x86_64": 117, "aarch64": 147}.get(platform.machine())
NOBODY = 65534


@pytest.fixture
def cluster() -> str:
    """The name of a cluster of this test's own."""
    return f"c-{secrets.token_hex(4)}"


@pytest.fixture
def server(cluster: str) -> Iterator[ShmServer]:
    shelf = Shelf()
    server = ShmServer(shelf, cluster, PEER)
    yield server
    server.close()
    shelf.close()


def say(cluster: str, packet: bytes) -> bytes:
    """What the server answers; b"" when it closes the connection."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connected:
        connected.settimeout(30)
        connected.connect(wire.name_of(cluster, PEER))
        try:
            connected.send(packet)
            return connected.recv(wire.PACKET_BYTES_MAX)
        except (BrokenPipeError, ConnectionResetError):
            return b""


def as_nobody(answers: list[bytes], cluster: str) -> None:
    """To be run in a thread of its own, which is another user's from then on: the system call
    concerns one thread alone."""
    assert ctypes.CDLL(None).syscall(SETRESUID, NOBODY, NOBODY, NOBODY) == 0
    answers.append(say(cluster, b"{}"))


def test_nonsense_ends_the_connection_and_is_told_once(server: ShmServer, cluster: str, caplog):
    assert say(cluster, b"nonsense") == b""
    (line,) = caplog.messages
    assert line.startswith("a connection of another mover was closed: A request over shm cannot be")


@pytest.mark.skipif(os.geteuid() != 0 or SETRESUID is None, reason="only root can be another user")
def test_another_user_is_sent_away_and_that_is_told_once(server: ShmServer, cluster: str, caplog):
    answers: list[bytes] = []
    thread = threading.Thread(target=as_nobody, args=(answers, cluster))
    thread.start()
    thread.join()
    assert answers == [b""]
    (line,) = caplog.messages
    assert f"User {NOBODY} is another one than that of this mover" in line


def test_a_peer_that_goes_is_no_news(server: ShmServer, cluster: str, caplog):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connected:
        connected.connect(wire.name_of(cluster, PEER))
    server.close()  # its threads have ended
    assert caplog.messages == []
