"""A stop that the disk has no room for, with stand-ins for our own processes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from embedded import home, outside
from samples import MIB, SOCKET_STATS
from tensorcast.deploy import cluster, losses
from tensorcast.deploy.home import Layout, prepare_home
from tensorcast.schema.errors import Corrupt, OutOfCapacity
from tensorcast.schema.ids import Epoch, NodeId
from tensorcast.schema.socket import Welcome, encode_frame

__all__ = ["home", "outside"]  # fixtures

WELCOME = Welcome(cluster="test", node=NodeId("n1"), epoch=Epoch(1))
STATS = msgspec.structs.replace(SOCKET_STATS, unsaved_bytes=180 * MIB, disk_free_bytes=100 * MIB)


@contextmanager
def answering(path, *answers) -> Iterator[None]:
    """A mover's socket that gives these answers to every connection."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    for answer in answers:
                        if connection.recv(65536):
                            connection.sendall(encode_frame(answer))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_down_refuses_to_lose_memory_that_does_not_fit(home):
    home.up()
    with answering(f"{home.config.sockets}/n1.sock", WELCOME, STATS):
        with pytest.raises(OutOfCapacity, match=r"n1 .*212 MiB are needed, 100 MiB are free"):
            home.down()
        assert cluster.status(home.home).state == "up"
        cluster.down(home.home, force=True)
    assert cluster.status(home.home).state == "down"


def test_purge_asks_nobody_about_room(home):
    home.up()
    with answering(f"{home.config.sockets}/n1.sock", WELCOME, STATS):
        home.down(purge=True)
    assert not home.layout.config.exists()


def test_a_mover_that_does_not_answer_is_told_of_and_left_out(home):
    home.up()
    home.down()
    assert "n1 does not say whether its memory fits on the disk" in home.said


def test_an_answer_that_makes_no_sense_is_told(tmp_path):
    with answering(tmp_path / "m.sock", WELCOME, WELCOME), pytest.raises(Corrupt, match="Welcome"):
        losses.ask_stats(tmp_path / "m.sock")


def test_a_disk_that_became_small_does_not_keep_a_cluster_from_its_start(tmp_path, monkeypatch):
    layout = Layout(tmp_path / "home")
    free = {"bytes": 40 * MIB}
    monkeypatch.setattr("tensorcast.deploy.home.free_disk_bytes", lambda _: free["bytes"])
    with pytest.raises(OutOfCapacity, match="A cluster needs 256 MiB to start"):
        prepare_home(layout, uid=1000)
    layout.config.write_text("{}")
    prepare_home(layout, uid=1000)
    free["bytes"] = 31 * MIB
    with pytest.raises(OutOfCapacity, match="A cluster needs 32 MiB to start"):
        prepare_home(layout, uid=1000)
