"""The client's end of the socket against a mover that misbehaves."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from contextlib import ExitStack, contextmanager, suppress

import pytest

from samples import SOCKET_STATS as STATS
from tensorcast.client.context import Context, NodeContext
from tensorcast.client.socket import MoverSockets
from tensorcast.schema.errors import (
    Conflict,
    Corrupt,
    InvalidArgument,
    PermissionDenied,
    Timeout,
    Unavailable,
)
from tensorcast.schema.ids import Epoch, NodeId
from tensorcast.schema.socket import (
    LENGTH,
    AskStats,
    ErrorBody,
    Get,
    Hello,
    PutOpened,
    Refused,
    Stats,
    Welcome,
    body_bytes,
    decode_request,
    encode_frame,
)

WELCOME = Welcome(cluster="test", node=NodeId("n1"), epoch=Epoch(1))


@contextmanager
def mover(path, *answers):
    """Serves one connection after another; each gets the answers from the first on until one is
    None, which closes it. Bytes are sent as they are."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    heard: list[object] = []

    def serve() -> None:
        left = list(answers)
        while left:
            connection, _ = listener.accept()
            with connection:
                while True:
                    request = receive(connection)
                    if request is None:
                        break
                    heard.append(request)
                    if isinstance(request, Hello):
                        connection.sendall(encode_frame(WELCOME))
                        continue
                    answer = left.pop(0)
                    if answer is None:
                        break
                    send(connection, answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield heard
    finally:
        listener.close()


def receive(connection):
    head = connection.recv(4, socket.MSG_WAITALL)
    if len(head) < 4:
        return None
    return decode_request(connection.recv(body_bytes(head), socket.MSG_WAITALL))


def send(connection, answer) -> None:
    if isinstance(answer, tuple):
        socket.send_fds(connection, [encode_frame(answer[0])], list(answer[1]))
    else:
        connection.sendall(answer if isinstance(answer, bytes) else encode_frame(answer))


def sockets(path) -> MoverSockets:
    context = Context(
        cluster="test", nats_url="", nodes={"n1": NodeContext(socket=str(path))}, default_node="n1"
    )
    return MoverSockets(context, "user:test@here")


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_requests_share_a_connection(tmp_path):
    path = tmp_path / "m.sock"
    with mover(path, STATS, STATS) as heard:
        client = sockets(path)
        for _ in range(2):
            assert await client.ask(AskStats(), Stats) == (STATS, ())
        client.close()
    assert [type(request) for request in heard] == [Hello, AskStats, AskStats]
    assert heard[0].actor == "user:test@here"


async def test_an_answer_may_come_in_pieces(tmp_path):
    path = tmp_path / "m.sock"
    frame = encode_frame(STATS)
    with mover(path, frame[:2]):
        client = sockets(path)
        with pytest.raises(Timeout):
            async with client.connection() as connection:
                await connection.ask(AskStats(), Stats, timeout=0.2)
        client.close()


async def test_a_refusal_is_the_error_it_names_and_keeps_the_connection(tmp_path):
    path = tmp_path / "m.sock"
    refusal = Refused(error=ErrorBody(code="conflict", message="Taken.", node="n1"))
    with mover(path, refusal, STATS) as heard:
        client = sockets(path)
        with pytest.raises(Conflict, match="Taken") as caught:
            await client.ask(AskStats(), Stats)
        assert caught.value.node == "n1"
        await client.ask(AskStats(), Stats)
        client.close()
    assert [type(request) for request in heard] == [Hello, AskStats, AskStats]


async def test_a_mover_that_was_restarted_is_asked_once_more(tmp_path):
    path = tmp_path / "m.sock"
    with mover(path, STATS, None, STATS) as heard:
        client = sockets(path)
        await client.ask(AskStats(), Stats)
        await client.ask(AskStats(), Stats)
        client.close()
    assert [type(r) for r in heard] == [Hello, AskStats, AskStats, Hello, AskStats]


async def test_a_mover_that_always_hangs_up_is_not_asked_for_ever(tmp_path):
    path = tmp_path / "m.sock"
    with mover(path, None, None, STATS):
        client = sockets(path)
        with pytest.raises(Unavailable, match="closed the connection"):
            await client.ask(AskStats(), Stats)
        client.close()


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (LENGTH.pack(2) + b"{}", "cannot be read"),
        (LENGTH.pack(1 << 31), "was announced"),
        (WELCOME, "answered Welcome, not Stats"),
    ],
)
async def test_an_answer_that_makes_no_sense_is_corrupt(tmp_path, answer, told):
    path = tmp_path / "m.sock"
    with mover(path, answer):
        client = sockets(path)
        with pytest.raises(Corrupt, match=told):
            await client.ask(AskStats(), Stats)
        client.close()


async def test_descriptors_come_with_their_answer_and_never_leak(tmp_path):
    path = tmp_path / "m.sock"
    opened = PutOpened(session=1, capacity_bytes=8, is_zero=True)
    null = os.open(os.devnull, os.O_RDONLY)
    with mover(path, (opened, [null, null]), (opened, [null, null])):
        client = sockets(path)
        answer, descriptors = await client.ask(AskStats(), PutOpened)
        assert (answer, len(descriptors)) == (opened, 2)
        assert not any(os.get_inheritable(descriptor) for descriptor in descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        before = open_descriptors()
        with pytest.raises(Corrupt, match="not Stats"):
            await client.ask(AskStats(), Stats)
        assert open_descriptors() <= before
        client.close()
    os.close(null)


async def test_a_cancelled_request_closes_its_connection(tmp_path):
    path = tmp_path / "m.sock"
    with mover(path, b""):
        client = sockets(path)
        asking = asyncio.create_task(client.ask(AskStats(), Stats))
        await asyncio.sleep(0.1)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert client._idle == []
        client.close()


async def test_an_absent_mover_is_told_at_once(tmp_path):
    started = time.monotonic()
    with pytest.raises(Unavailable, match="not running"):
        await sockets(tmp_path / "no.sock").ask(AskStats(), Stats)
    assert time.monotonic() - started < 1


def leave_behind(path) -> None:
    """What is left of a mover that was killed: a socket on which nobody listens."""
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))


async def test_a_mover_that_was_killed_is_waited_for(tmp_path):
    path = tmp_path / "m.sock"
    leave_behind(path)

    def come_back() -> None:
        time.sleep(0.3)
        with mover(tmp_path / "new.sock", STATS):
            (tmp_path / "new.sock").rename(path)
            ended.wait(10)

    ended = threading.Event()
    mending = threading.Thread(target=come_back)
    mending.start()
    assert await sockets(path).ask(AskStats(), Stats) == (STATS, ())
    ended.set()
    mending.join()


async def test_a_mover_that_stays_killed_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("tensorcast.client.socket.RECONNECT_S", 0.2)
    leave_behind(tmp_path / "m.sock")
    with pytest.raises(Unavailable, match="not running"):
        await sockets(tmp_path / "m.sock").ask(AskStats(), Stats)


async def test_a_mover_that_hangs_up_on_a_greeting_is_greeted_again(tmp_path):
    path = tmp_path / "m.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            first, _ = listener.accept()
            first.close()
            second, _ = listener.accept()
            with second:
                receive(second)
                second.sendall(encode_frame(WELCOME))
                receive(second)

        serving = threading.Thread(target=serve)
        serving.start()
        client = sockets(path)
        async with client.connection(is_fresh=True):
            pass
        client.close()
        serving.join()


@pytest.mark.parametrize("waiting", [0, 8], ids=["greeting", "connecting"])
async def test_a_frozen_mover_takes_no_more_time_than_is_given(tmp_path, waiting):
    path = tmp_path / "m.sock"
    with socket.socket(socket.AF_UNIX) as listener, ExitStack() as before:
        listener.bind(str(path))
        listener.listen(1)
        for _ in range(waiting):  # as many as its backlog takes, and more
            other = before.enter_context(socket.socket(socket.AF_UNIX))
            other.setblocking(False)
            with suppress(BlockingIOError):
                other.connect(str(path))
        began = time.monotonic()
        with pytest.raises(Timeout, match=r"within 0\.3 s"):
            await sockets(path).ask(AskStats(), Stats, timeout=0.3)
        assert time.monotonic() - began < 1.5


async def test_text_that_has_no_bytes_is_refused_before_anything_is_sent(tmp_path):
    path = tmp_path / "m.sock"
    with mover(path, STATS) as heard:
        client = sockets(path)
        with pytest.raises(InvalidArgument, match=r"'a\\udcff' is not valid text"):
            await client.ask(Get(what="a\udcff"), Stats)
        assert await client.ask(AskStats(), Stats) == (STATS, ())
        client.close()
    assert [type(request) for request in heard] == [Hello, AskStats]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may do everything")
async def test_a_socket_of_somebody_else_is_told(tmp_path):
    path = tmp_path / "m.sock"
    with mover(path):
        path.chmod(0)
        with pytest.raises(PermissionDenied):
            await sockets(path).ask(AskStats(), Stats)


async def test_without_a_node_the_way_to_one_is_told():
    client = MoverSockets(Context(cluster="test", nats_url=""), "user:test@here")
    with pytest.raises(Unavailable, match="No mover of this machine is known"):
        await client.ask(AskStats(), Stats)
