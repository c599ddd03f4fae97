"""The protocol of systemd, from the side of the service."""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorcast.movers import notify
from tensorcast.movers.notify import Notifier, adopt_descriptors


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.setblocking(False)
        yield listening


def receive(supervisor: socket.socket) -> tuple[str, list[int]]:
    text, rights, _, _ = supervisor.recvmsg(8192, socket.CMSG_SPACE(64))
    descriptors = array.array("i")
    for _, _, payload in rights:
        descriptors.frombytes(payload)
    return text.decode(), list(descriptors)


def test_without_a_supervisor_nothing_happens():
    notifier = Notifier.from_environ({})
    notifier.ready("serving")
    notifier.keep("segment", 0)
    notifier.close()


def test_messages_and_descriptors_arrive(supervisor: socket.socket, tmp_path: Path):
    notifier = Notifier(str(tmp_path / "notify"))
    notifier.ready("serving\non n1")
    assert receive(supervisor) == ("READY=1\nSTATUS=serving on n1", [])
    memory = os.memfd_create("segment")
    os.write(memory, b"kept")
    notifier.keep("segment-1", memory)
    text, (copy,) = receive(supervisor)
    assert text == "FDSTORE=1\nFDNAME=segment-1"
    assert os.pread(copy, 4, 0) == b"kept"
    notifier.forget("segment-1")
    assert receive(supervisor)[0] == "FDSTOREREMOVE=1\nFDNAME=segment-1"
    for descriptor in (memory, copy):
        os.close(descriptor)
    notifier.close()
    notifier.close()


def test_a_supervisor_that_is_gone_is_no_error(tmp_path: Path):
    notifier = Notifier(str(tmp_path / "nobody"))
    notifier.keep("segment", 0)
    notifier.close()


def test_descriptors_for_another_process_are_left_alone():
    environ = {"LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "a"}
    assert adopt_descriptors(environ, 2) == {}
    assert environ == {}


def test_descriptors_are_adopted_by_name(monkeypatch: pytest.MonkeyPatch):
    first = os.memfd_create("a")
    places = [os.dup2(first, place) for place in (900, 901, 902)]
    monkeypatch.setattr(notify, "FIRST_DESCRIPTOR", places[0])
    environ = {"LISTEN_PID": "7", "LISTEN_FDS": "3", "LISTEN_FDNAMES": "a:b:a"}
    assert adopt_descriptors(environ, 7) == {"a": places[0], "b": places[1]}
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(places[2])  # the second "a" is a repeat: closed
    for descriptor in (first, *places[:2]):
        os.close(descriptor)
