import contextlib
import socket
import threading
import time

import pytest

from tensorcast.movers.transports.tcp import wire
from tensorcast.movers.transports.tcp.dialing import ClientLimits, Dialer
from tensorcast.schema.errors import PermissionDenied, Unavailable

HELLO = wire.Hello(cluster="c", node="n2", peer="n1")
QUICK = ClientLimits(connect_s=0.2)


class Server:
    """Greets each connection with the next of the given answers."""

    def __init__(self, *answers):
        self._answers = answers
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._stack = contextlib.ExitStack()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self):
        for answer in self._answers:
            connected, _ = self._listening.accept()
            self._stack.enter_context(connected)
            connected.recv(1000)
            if answer is None:
                connected.close()
            else:
                connected.sendall(wire.pack_opening(answer))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._thread.join(5)
        self._stack.close()
        self._listening.close()


def welcome(life, refusal=""):
    return wire.Welcome(node="n1", life=life, refusal=refusal)


def soon():
    return time.monotonic() + 5


def test_a_connection_is_replaced_by_one_to_the_same_life():
    with Server(welcome("x"), None, welcome("x"), welcome("y")) as server:
        dialer = Dialer("n1", server.address, HELLO, QUICK)
        dialer.dial().close()
        dialer.redial(soon()).close()
        with pytest.raises(Unavailable, match="cannot go on: it was started anew"):
            dialer.redial(soon())


def test_a_refusal_is_final():
    with Server(welcome("x", "No.")) as server, pytest.raises(PermissionDenied, match="No"):
        Dialer("n1", server.address, HELLO, QUICK).redial(soon())


def test_a_closed_port_is_not_tried_again():
    with Server() as server:
        dialer = Dialer("n1", server.address, HELLO, QUICK)
    with pytest.raises(Unavailable, match="has gone"):
        dialer.redial(time.monotonic() + 1000)
    with pytest.raises(Unavailable, match="cannot be reached"):
        dialer.dial()


def test_it_gives_up_in_time_and_when_it_is_told_to():
    with Server(None, None) as server:
        dialer = Dialer("n1", server.address, HELLO, QUICK)
        with pytest.raises(Unavailable, match="cannot be reached"):
            dialer.redial(time.monotonic() - 1)
        dialer.stop()
        with pytest.raises(Unavailable):
            dialer.redial(time.monotonic() + 1000)


def test_patience_is_the_shorter_one():
    assert ClientLimits(quiet_s=2, stall_s=10).patience_s == 2
    assert ClientLimits(quiet_s=2, stall_s=1).patience_s == 1
