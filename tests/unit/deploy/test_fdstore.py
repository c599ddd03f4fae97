"""Descriptors kept for a service."""

import os

import pytest

from tensorcast.deploy.fdstore import FdStore


@pytest.fixture
def store():
    kept = FdStore(size_max=3)
    yield kept
    kept.close()


def memory(text=b"x"):
    descriptor = os.memfd_create("test")
    os.write(descriptor, text)
    return descriptor


def is_open(descriptor):
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def test_descriptors_are_kept_in_order(store):
    a, b = memory(), memory()
    store.add("a", [a])
    store.add("b", [b])
    assert store.named() == (("a", a), ("b", b))


def test_the_same_memory_is_kept_once(store):
    first = memory()
    again = os.dup(first)
    store.add("a", [first])
    assert store.add("a", [again]) == 0
    assert store.named() == (("a", first),)
    assert not is_open(again)


def test_what_does_not_fit_is_closed_and_counted(store):
    descriptors = [memory() for _ in range(5)]
    assert store.add("a", descriptors) == 2
    assert [is_open(descriptor) for descriptor in descriptors] == [True] * 3 + [False] * 2


def test_removing_closes_all_of_a_name(store):
    a, b, c = memory(), memory(), memory()
    store.add("a", [a, b])
    store.add("c", [c])
    store.remove("a")
    assert store.named() == (("c", c),)
    assert not is_open(a)
    assert not is_open(b)


def test_a_removed_one_can_come_back(store):
    a = memory()
    again = os.dup(a)
    store.add("a", [a])
    store.remove("a")
    store.add("a", [again])
    assert len(store) == 1


def test_closing_closes_all(store):
    a = memory()
    store.add("a", [a])
    store.close()
    assert not is_open(a)
    assert len(store) == 0
