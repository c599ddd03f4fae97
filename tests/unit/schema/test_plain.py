import math

import msgspec
import pytest

from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.plain import (
    check_events,
    check_numbers,
    check_plain,
    find_number,
    has_order,
    is_same,
)


class _Event(msgspec.Struct):
    data: object


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": [1, 2.5, "x", None, True]}, None),
        ([-(1 << 63), (1 << 64) - 1], None),
        (math.nan, ""),
        ({"a": {"b": [0, -math.inf]}}, "a.b[1]"),
        ([(1, math.inf)], "[0][1]"),
        ({"n": 1 << 64}, "n"),
        ([-(1 << 63) - 1], "[0]"),
    ],
)
def test_the_place_of_a_number_that_cannot_be_kept(value, place):
    found = find_number(value)
    assert (found.place if found else None) == place


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"loss": math.nan}, "The data cannot be kept: loss is NaN or infinite, which JSON cannot"),
        ({"n": 10**30}, "The data cannot be kept: n is an integer beyond 64 bits"),
        (10**30, "The data is an integer beyond 64 bits"),
    ],
)
def test_it_is_told_where(value, words):
    check_numbers({"loss": 0.5}, "The data")
    with pytest.raises(InvalidArgument, match=words):
        check_numbers(value, "The data")
    with pytest.raises(InvalidArgument, match=words):
        check_plain(value, "The data")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": b"x"}, "a is of the type bytes, which JSON does not have"),
        ({"a": [{1}]}, r"a\[0\] is of the type set"),
        ({"a": {1: 2}}, "a is a map with the name 1, which is no text"),
        ({1: 2}, "The data is a map with the name 1"),
    ],
)
def test_what_json_does_not_have(value, words):
    check_plain({"a": [1, 2.5, "x", None, True, (1, {"b": {}})]}, "The data")
    with pytest.raises(InvalidArgument, match=words):
        check_plain(value, "The data")


def test_an_event_holds_what_every_reader_can():
    check_events((_Event({"n": (1 << 64) - 1}), _Event(1.5)))
    with pytest.raises(InvalidArgument, match=r"_Event cannot be kept: data\.n is an integer"):
        check_events((_Event(1), _Event({"n": 1 << 64})))


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        (1, 1.0, True),
        (True, 1, False),
        (False, 0, False),
        ({"a": [1, {"b": None}]}, {"a": (1, {"b": None})}, True),
        ({"a": [True]}, {"a": [1]}, False),
        ({"a": 1}, {"b": 1}, False),
        ([1], [1, 2], False),
        ("1", 1, False),
        (None, None, True),
    ],
)
def test_values_are_the_same_as_json(left, right, same):
    assert is_same(left, right) is same
    assert is_same(right, left) is same


def test_what_has_an_order():
    assert has_order(1, 2.5)
    assert has_order("a", "b")
    for left, right in ((True, 1), (1, "1"), (None, None), ([1], [2])):
        assert not has_order(left, right)
