import mmap
import os
import threading

import pytest

from tensorcast.movers.pages import STEP_BYTES, Prefaulter, is_present, prefault

PAGES = 64


@pytest.fixture
def shared():
    fd = os.memfd_create("pages")
    os.posix_fallocate(fd, 0, PAGES * mmap.PAGESIZE)
    mapping = mmap.mmap(fd, PAGES * mmap.PAGESIZE)
    os.close(fd)
    view = memoryview(mapping)
    yield view
    view.release()
    mapping.close()


def test_pages_become_present(shared):
    assert not is_present(shared)
    prefault(shared[mmap.PAGESIZE + 5 : 10 * mmap.PAGESIZE + 7])
    assert is_present(shared[mmap.PAGESIZE : 11 * mmap.PAGESIZE])
    assert not is_present(shared[: 2 * mmap.PAGESIZE]), "its first page is not"
    assert not is_present(shared[10 * mmap.PAGESIZE :])
    assert bytes(shared) == bytes(len(shared)), "nothing is written"


def test_what_was_written_is_present(shared):
    shared[0] = 1
    shared[-1] = 1
    assert is_present(shared), "the first and the last page are looked at"


def test_nothing_is_present_as_a_whole(shared):
    assert is_present(shared[:0])
    prefault(shared[:0])
    assert not is_present(shared)


def test_pages_become_present_in_the_background(shared):
    pages = Prefaulter()
    pages.ahead(shared)
    pause = threading.Event()
    for _ in range(5000):
        if is_present(shared) or pause.wait(0.001):
            break
    assert is_present(shared)
    pages.ahead(shared)
    pages.close()
    pages.close()


def test_a_closed_one_holds_no_memory():
    mapping = mmap.mmap(-1, 64 * STEP_BYTES)
    pages = Prefaulter()
    with memoryview(mapping) as view, view[1:] as part:
        pages.ahead(part)
        pages.ahead(view)
        pages.close()
        pages.ahead(part)
    mapping.close()  # raises BufferError if anything still looked at it
