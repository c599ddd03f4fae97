import contextlib
import socket
import struct
import threading
import time

import pytest

from tensorcast.movers.transports.tcp.sockets import (
    SilenceError,
    congestion_of,
    format_address,
    is_on_this_host,
    limit_calls,
    listen_on,
    parse_address,
    receive,
    receive_into,
    send,
    tune,
    window_bytes_max,
)
from tensorcast.schema.errors import InvalidArgument


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        ("[::1]:0", ("::1", 0)),
        ("node-7.example:65535", ("node-7.example", 65535)),
        (":7001", ("", 7001)),
    ],
)
def test_addresses_are_read(text, pair):
    assert parse_address(text) == pair
    if pair[0]:
        assert format_address(*pair) == text


@pytest.mark.parametrize("text", ["", "host", "host:", "host:x", "host:65536", "host:-1", "host:²"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(InvalidArgument, match="host:port"):
        parse_address(text)


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    yield ours, theirs
    ours.close()
    theirs.close()


def soon():
    return time.monotonic() + 5


def test_exactly_so_many_bytes_are_read(pair):
    ours, theirs = pair
    send(theirs, b"hello world")
    assert receive(ours, 5, soon()) == b"hello"
    target = bytearray(6)
    receive_into(ours, memoryview(target), soon())
    assert target == b" world"
    assert receive(ours, 0, soon()) == b""


def test_the_end_of_a_connection_is_an_error_in_the_middle(pair):
    ours, theirs = pair
    theirs.send(b"ab")
    theirs.close()
    with pytest.raises(EOFError):
        receive(ours, 3, soon())


def test_a_silent_peer_is_given_up(pair):
    limit_calls(pair[0], 0.01)
    with pytest.raises(SilenceError, match="silent"):
        receive(pair[0], 1, soon())


def trickle(connected, stop):
    while not stop.wait(0.005):
        connected.send(b"x")


def test_a_trickling_peer_is_given_up():
    stop = threading.Event()
    with connected_over("127.0.0.1:0", "127.0.0.1") as (ours, theirs):
        limit_calls(ours, 0.05)
        trickling = threading.Thread(target=trickle, args=(theirs, stop))
        trickling.start()
        try:
            with pytest.raises(TimeoutError, match="slow"):
                receive(ours, 1 << 20, time.monotonic() + 0.1)
        finally:
            stop.set()
            trickling.join()


def test_a_peer_that_does_not_read_is_given_up(pair):
    limit_calls(pair[0], 0.01)
    with pytest.raises(TimeoutError, match="does not read"):
        send(pair[0], bytes(1 << 24))


@contextlib.contextmanager
def connected_over(listen, connect):
    """Both ends of a connection to a socket that listens on an address."""
    with listen_on(listen, 8) as listening:
        port = listening.getsockname()[1]
        with socket.create_connection((connect, port), 5) as ours:
            theirs, _ = listening.accept()
            with theirs:
                yield ours, theirs


@pytest.mark.parametrize(
    ("listen", "connect"),
    [
        ("127.0.0.1:0", "127.0.0.1"),
        ("[::1]:0", "::1"),
        ("[::]:0", "::1"),
        ("[::]:0", "127.0.0.1"),
        (":0", "127.0.0.1"),
    ],
)
def test_both_families_are_listened_to_and_known_as_this_host(listen, connect):
    with connected_over(listen, connect) as ends:
        for end in ends:
            assert is_on_this_host(end)
            tune(end, 1)
            assert congestion_of(end) in ("cubic", "bbr", "reno")


def test_a_connection_that_the_peer_has_reset_is_not_on_this_host():
    with connected_over("127.0.0.1:0", "127.0.0.1") as (ours, theirs):
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        theirs.close()
        assert not is_on_this_host(ours)


def test_one_address_of_ipv6_takes_no_ipv4():
    with listen_on("[::1]:0", 8) as listening, pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", listening.getsockname()[1]), 5)


def test_scopes_are_part_of_a_host():
    assert parse_address("[fe80::1%eth0]:7") == ("fe80::1%eth0", 7)
    assert format_address("fe80::1%eth0", 7) == "[fe80::1%eth0]:7"


def test_the_window_is_that_of_the_kernel():
    assert window_bytes_max() >= 1 << 16
