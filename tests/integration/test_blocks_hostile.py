"""Peers and applications that mean no good: frames that announce much, trickle, or never end."""

from __future__ import annotations

import socket
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from block_nodes import BlockNode, wait_until
from tensorcast.movers.blocks import exchange, server
from tensorcast.schema.block_wire import (
    CHECK_BYTES,
    FRAME_BYTES_MAX,
    HEAD,
    OPENING,
    Greeting,
    Op,
    State,
    pack_opening,
    pack_request,
    parse_opening,
    seal,
)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[BlockNode]:
    found = BlockNode(tmp_path)
    yield found
    found.close()


def open_raw(node: BlockNode, *, is_local: bool) -> socket.socket:
    """A connection that has said hello, to the node's socket or its data port."""
    if is_local:
        found = socket.socket(socket.AF_UNIX)
        found.connect(f"{node.socket}.kv")
    else:
        host, _, port = node.address.rpartition(":")
        found = socket.create_connection((host, int(port)))
    found.settimeout(10)
    found.sendall(pack_opening(Greeting(cluster="test", actor="user:eve@test")))
    size = parse_opening(found.recv(OPENING.size, socket.MSG_WAITALL))
    found.recv(size, socket.MSG_WAITALL)
    return found


def is_cut_off(connected: socket.socket) -> bool:
    """Whether the other side closes before the test's patience ends."""
    try:
        return connected.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("is_local", [True, False])
def test_a_frame_beyond_what_clients_send_is_refused(node: BlockNode, is_local: bool):
    with open_raw(node, is_local=is_local) as eve:
        eve.sendall(HEAD.pack(FRAME_BYTES_MAX + 1, Op.FIND, 0, 20, 1, 1))
        assert is_cut_off(eve)


@pytest.mark.parametrize("is_local", [True, False])
def test_a_frame_that_trickles_ends_the_connection(node: BlockNode, is_local: bool, monkeypatch):
    monkeypatch.setattr(server, "FRAME_S_MAX", 0.3)
    monkeypatch.setattr(exchange, "FRAME_S_MAX", 0.3)
    with open_raw(node, is_local=is_local) as eve:
        eve.sendall(HEAD.pack(FRAME_BYTES_MAX, Op.EXISTS, 0, 20, 1, 1))
        eve.settimeout(0.02)
        for _ in range(500):
            try:
                eve.sendall(b"x")
                if not eve.recv(1):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        else:
            pytest.fail("It was listened to for ever.")


@pytest.mark.parametrize("is_local", [True, False])
def test_memory_grows_with_what_came_not_with_what_is_announced(node: BlockNode, is_local: bool):
    threads = threading.active_count()
    tracemalloc.start()
    eves = [open_raw(node, is_local=is_local) for _ in range(20)]
    try:
        wait_until(lambda: threading.active_count() >= threads + 20)
        before = tracemalloc.get_traced_memory()[0]
        for eve in eves:
            eve.sendall(HEAD.pack(FRAME_BYTES_MAX, Op.EXISTS, 0, 20, 1, 1) + b"x")
        threading.Event().wait(0.3)
        assert tracemalloc.get_traced_memory()[0] - before < 20 * (16 << 10)
    finally:
        tracemalloc.stop()
        for eve in eves:
            eve.close()


@pytest.mark.parametrize("is_local", [True, False])
def test_the_longest_frame_in_pieces_is_answered(node: BlockNode, is_local: bool):
    keys = [b"\x40" + b"m" * 64 + bytes(4) + n.to_bytes(32, "big") for n in range(1024)]
    frame = pack_request(Op.EXISTS, keys)
    frame = frame if is_local else seal(frame)
    with open_raw(node, is_local=is_local) as other:
        for _ in range(2):
            for at in range(0, len(frame), 30_000):
                other.sendall(frame[at : at + 30_000])
                threading.Event().wait(0.005)
            got = other.recv(HEAD.size + 1024, socket.MSG_WAITALL)
            assert got[HEAD.size :] == bytes([State.ABSENT]) * 1024
            if not is_local:
                other.recv(CHECK_BYTES, socket.MSG_WAITALL)
