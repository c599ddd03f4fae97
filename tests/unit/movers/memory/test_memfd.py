import mmap
import os
import signal

import pytest

from tensorcast.movers.memory.memfd import adopt_segment, create_segment, round_up
from tensorcast.schema.errors import Corrupt, OutOfCapacity

SIZE = 2 << 20


@pytest.fixture
def segment():
    made = create_segment("segment-test", SIZE)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("asked", "given"), [(0, SIZE), (1, SIZE), (SIZE, SIZE), (SIZE + 1, 2 * SIZE)]
)
def test_capacities_are_whole_steps(asked, given):
    assert round_up(asked) == given


def test_new_memory_is_zero_and_really_there(segment):
    assert segment.memory == bytes(SIZE)
    assert os.fstat(segment.fd).st_blocks * 512 >= SIZE
    assert not os.get_inheritable(segment.fd)


def test_a_reader_sees_the_bytes_and_cannot_change_them(segment):
    segment.memory[:3] = b"abc"
    fd = segment.open_read_only()
    with mmap.mmap(fd, SIZE, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as own:
        own[:3] = b"xyz"
        assert segment.memory[:3] == b"abc"
    with pytest.raises(PermissionError):
        mmap.mmap(fd, SIZE)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(fd, b"no")
    os.close(fd)


def test_a_reader_can_neither_shrink_nor_grow_it(segment):
    fd = segment.open_writable()
    for size in (0, 2 * SIZE):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, size)
    os.close(fd)


def test_writers_are_told_from_readers(segment):
    reader = segment.open_read_only()
    assert not segment.has_writers()
    writer = segment.open_writable()
    own = mmap.mmap(writer, SIZE)
    os.close(writer)
    assert segment.has_writers()  # the mapping still can
    own.close()
    assert not segment.has_writers()
    assert segment.is_mapped()
    os.close(reader)


def test_a_writer_is_known_to_who_adopts_the_segment(segment):
    writer = segment.open_writable()
    adopted = adopt_segment("segment-test", os.dup(segment.fd))
    assert adopted.has_writers()
    os.close(writer)
    assert not adopted.has_writers()
    adopted.close()


def test_untouched_memory_tells_how_far_it_was_written():
    segment = create_segment("segment-test", 2 * SIZE, is_touched=False)
    assert os.fstat(segment.fd).st_blocks == 0
    assert segment.written_bytes(0) == 0
    os.pwrite(segment.fd, b"x" * 10_000, 0)
    assert segment.written_bytes(0) == 12288
    os.pwrite(segment.fd, b"x" * (2 * SIZE - 12288), 12288)
    assert segment.written_bytes(4096) == 2 * SIZE
    assert segment.written_bytes(2 * SIZE) == 2 * SIZE
    segment.close()


def test_pages_that_are_missing_can_be_made(segment):
    bare = create_segment("segment-test", SIZE, is_touched=False)
    os.pwrite(bare.fd, b"x", 0)
    bare.touch(1)
    assert os.fstat(bare.fd).st_blocks == os.fstat(segment.fd).st_blocks
    assert bare.memory[0] == ord("x")
    bare.close()


@pytest.mark.parametrize("written", [0, 1, SIZE, SIZE + 1, 3 * SIZE])
def test_memory_takes_what_is_counted_in_whatever_pages(written):
    made = create_segment("segment-test", 4 * SIZE, is_touched=False)
    os.pwrite(made.fd, b"x" * written, 0)
    made.touch(written)
    assert os.fstat(made.fd).st_blocks * 512 == 4 * SIZE
    assert made.memory[:written] == b"x" * written
    assert made.memory[written:] == bytes(4 * SIZE - written)
    made.close()


def test_what_is_promised_to_others_counts():
    with pytest.raises(OutOfCapacity):
        create_segment("segment-test", SIZE, is_touched=False, owed_bytes=1 << 50)


def test_a_mapping_counts_after_its_descriptor_is_closed(segment):
    assert not segment.is_mapped()
    fd = segment.open_read_only()
    assert segment.is_mapped()
    own = mmap.mmap(fd, SIZE, flags=mmap.MAP_PRIVATE)
    os.close(fd)
    assert segment.is_mapped()
    own.close()
    assert not segment.is_mapped()


def test_a_reader_in_another_process_counts_until_it_is_gone(segment):
    fd = segment.open_read_only()
    child = os.fork()
    if not child:
        os.kill(os.getpid(), signal.SIGSTOP)
    os.close(fd)
    os.waitpid(child, os.WUNTRACED)
    assert segment.is_mapped()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert not segment.is_mapped()


def test_a_segment_lives_on_in_the_descriptor_store(segment):
    segment.memory[:5] = b"hello"
    stored = os.dup(segment.fd)
    reader = segment.open_read_only()
    segment.close()
    segment.close()
    adopted = adopt_segment("segment-test", stored)
    assert adopted.memory[:5] == b"hello"
    assert (adopted.name, adopted.capacity_bytes) == ("segment-test", SIZE)
    assert adopted.is_mapped(), "the reader of the older life is still there"
    os.close(reader)
    assert not adopted.is_mapped()
    adopted.close()


def test_other_descriptors_are_not_adopted(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(SIZE))
    unsealed = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, SIZE)
    for fd in (os.open(path, os.O_RDWR), unsealed):
        with pytest.raises(Corrupt, match="holds no segment"):
            adopt_segment("x", fd)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_more_than_the_machine_has_is_an_error_and_no_crash():
    with pytest.raises(OutOfCapacity, match="bytes of memory left"):
        create_segment("too-much", 1 << 46)


def test_a_view_that_somebody_still_holds_does_not_stop_a_close():
    segment = create_segment("held", 2 << 20)
    view = segment.memory[:10]
    segment.close()
    segment.close()
    assert segment.fd == -1
    view[0] = 1  # the mapping lives as long as the view
    view.release()


def test_what_is_discarded_is_no_memory_any_more_whoever_keeps_a_descriptor():
    made = create_segment("segment-test", SIZE)
    kept = os.dup(made.fd)
    made.memory[:3] = b"abc"
    made.discard()
    made.discard()
    try:
        assert os.fstat(kept).st_blocks == 0
    finally:
        os.close(kept)
