import asyncio
import os
import select
import socket

import pytest

from tensorcast.movers.memory.handover import FrameSocket, Lifelines
from tensorcast.schema.errors import Corrupt, Unavailable
from tensorcast.schema.socket import AskStats, Done, encode_frame


@pytest.fixture
async def pair():
    ours, theirs = socket.socketpair()
    frames = FrameSocket(ours)
    theirs.setblocking(False)
    yield frames, theirs
    frames.close()
    theirs.close()


async def test_a_frame_arrives_with_its_descriptors(pair):
    frames, theirs = pair
    fds = [os.memfd_create("one"), os.memfd_create("two")]
    os.write(fds[1], b"two")
    frame = encode_frame(AskStats())
    socket.send_fds(theirs, [frame], fds)
    body, received = await frames.receive()
    assert body == frame[4:]
    assert os.pread(received[1], 10, 0) == b"two"
    assert not any(os.get_inheritable(fd) for fd in received)
    for fd in (*fds, *received):
        os.close(fd)


async def test_frames_may_come_in_pieces_and_together(pair):
    frames, theirs = pair
    frame = encode_frame(AskStats())
    receiving = asyncio.create_task(frames.receive())
    for part in (frame[:2], frame[2:7], frame[7:] + frame):
        theirs.send(part)
        await asyncio.sleep(0)
    assert (await receiving) == (frame[4:], ())
    assert (await frames.receive()) == (frame[4:], ())


async def test_a_large_frame_and_descriptors_are_sent_whole(pair):
    frames, theirs = pair
    fd = os.memfd_create("granted")
    frame = b"\0\x20\0\0" + b"x" * (1 << 21)
    sending = asyncio.create_task(frames.send(frame, (fd,)))
    loop = asyncio.get_running_loop()
    await asyncio.sleep(0)
    head, received, _, _ = socket.recv_fds(theirs, 4, 4)
    got = bytearray(head)
    while len(got) < len(frame):
        got += await loop.sock_recv(theirs, 1 << 20)
    await sending
    assert got == frame
    assert len(received) == 1
    for open_fd in (fd, *received):
        os.close(open_fd)


async def test_the_end_of_a_connection_is_no_error_between_frames(pair):
    frames, theirs = pair
    theirs.close()
    assert await frames.receive() is None
    with pytest.raises(Unavailable):
        await frames.send(encode_frame(Done()))


@pytest.mark.parametrize("sent", [b"\0\0", b"\0\0\0\x09{", b"\xff\xff\xff\xff"])
async def test_frames_cut_off_or_too_long_are_refused(pair, sent):
    frames, theirs = pair
    theirs.send(sent)
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(Corrupt):
        await frames.receive()


@pytest.mark.parametrize("count", [5, 100])
async def test_too_many_descriptors_are_refused_and_closed(pair, count):
    frames, theirs = pair
    fd = os.memfd_create("x")
    socket.send_fds(theirs, [encode_frame(AskStats())[:4]], [fd] * count)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(Corrupt):
        await frames.receive()
    assert len(os.listdir("/proc/self/fd")) <= before
    os.close(fd)


async def test_descriptors_of_a_frame_that_is_cut_off_are_closed(pair):
    frames, theirs = pair
    before = len(os.listdir("/proc/self/fd"))
    fd = os.memfd_create("x")
    socket.send_fds(theirs, [b"\0\0\0\x09{"], [fd])
    os.close(fd)
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(Corrupt):
        await frames.receive()
    assert len(os.listdir("/proc/self/fd")) == before


async def test_waiting_for_a_frame_can_be_cancelled(pair):
    frames, theirs = pair
    receiving = asyncio.create_task(frames.receive())
    await asyncio.sleep(0)
    receiving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiving
    frame = encode_frame(AskStats())
    theirs.send(frame)
    assert (await frames.receive()) == (frame[4:], ())


@pytest.fixture
def lifelines():
    made = Lifelines()
    yield made
    made.close()


def test_a_segment_is_deserted_when_its_last_reader_closes(lifelines):
    first, second, other = (lifelines.grant(name) for name in ("s", "s", "t"))
    assert (lifelines.readers("s"), lifelines.total()) == (2, 3)
    assert lifelines.reap() == ()
    os.close(first)
    assert lifelines.reap() == ()
    assert lifelines.readers("s") == 1
    os.close(second)
    assert lifelines.reap() == ("s",)
    assert lifelines.reap() == ()
    assert (lifelines.readers("s"), lifelines.readers("t")) == (0, 1)
    os.close(other)


def test_its_descriptor_tells_the_event_loop(lifelines):
    poll = select.poll()
    poll.register(lifelines.fileno(), select.POLLIN)
    theirs = lifelines.grant("s")
    assert not poll.poll(0)
    os.close(theirs)
    assert poll.poll(0)


def test_a_reader_that_talks_into_it_changes_nothing(lifelines):
    theirs = lifelines.grant("s")
    os.write(theirs, b"hello")
    assert lifelines.reap() == ()
    assert lifelines.readers("s") == 1
    os.close(theirs)
    assert lifelines.reap() == ("s",)


def test_closing_leaks_nothing():
    before = len(os.listdir("/proc/self/fd"))
    lifelines = Lifelines()
    theirs = [lifelines.grant("s") for _ in range(3)]
    lifelines.close()
    lifelines.close()
    for fd in theirs:
        os.close(fd)
    assert len(os.listdir("/proc/self/fd")) == before
