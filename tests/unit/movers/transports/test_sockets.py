import socket
import time

import pytest

from tensorcast.movers.transports.tcp.sockets import (
    format_address,
    limit_calls,
    parse_address,
    receive,
    receive_into,
    send,
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
    with pytest.raises(TimeoutError, match="silent"):
        receive(pair[0], 1, soon())


def test_a_trickling_peer_is_given_up(pair):
    pair[1].send(b"x")
    with pytest.raises(TimeoutError, match="slow"):
        receive(pair[0], 2, time.monotonic() - 1)


def test_a_peer_that_does_not_read_is_given_up(pair):
    limit_calls(pair[0], 0.01)
    with pytest.raises(TimeoutError, match="does not read"):
        send(pair[0], bytes(1 << 24))
