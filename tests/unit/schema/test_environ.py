from __future__ import annotations

import pytest

from tensorcast.schema.environ import read_integer, read_number, read_switch
from tensorcast.schema.errors import InvalidArgument


@pytest.mark.parametrize(
    ("text", "value"),
    [("", 7), ("0", 0), ("0x68", 104), ("0XFF", 255), ("1e2", 100), ("2.0", 2), ("010", 10)],
)
def test_whole_numbers_are_read_as_they_are_written(text: str, value: int):
    assert read_integer({"A": text}, "A", 7, 0, 255) == value


@pytest.mark.parametrize("text", ["2.9", "256", "-1", "nan", "inf", "many", "0x", "0x1.8", "1e400"])
def test_what_is_no_whole_number_in_the_bounds_is_refused(text: str):
    with pytest.raises(InvalidArgument) as refused:
        read_integer({"A": text}, "A", 7, 0, 255)
    assert str(refused.value) == f"A is {text!r}. It must be a whole number, from 0 to 255."


def test_a_size_without_a_bound_is_exact():
    assert read_integer({"A": str(2**53 + 1)}, "A", 0, 0) == 2**53 + 1
    with pytest.raises(InvalidArgument, match="0 or more"):
        read_integer({"A": str(2**63)}, "A", 0, 0)


@pytest.mark.parametrize("text", ["nan", "inf", "0.04", "soon", "3.1"])
def test_what_is_no_number_in_the_bounds_is_refused(text: str):
    assert read_number({"A": "0.05"}, "A", 1.0, 0.05, 3) == 0.05
    with pytest.raises(InvalidArgument, match=r"It must be a number, from 0\.05 to 3\."):
        read_number({"A": text}, "A", 1.0, 0.05, 3)


def test_a_switch_is_on_or_off():
    assert [read_switch({"A": text}, "A") for text in ("", "off", "on")] == [False, False, True]
    with pytest.raises(InvalidArgument, match="Write on or off"):
        read_switch({"A": "yes"}, "A")
