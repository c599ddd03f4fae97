from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorcast.controlplane.store.cells import (
    INTEGER_MAX,
    TEXT_MAX,
    as_checked_json,
    as_integer,
    as_json,
    as_moment,
    as_text,
    as_uuid,
)


@given(st.text())
def test_text_has_no_nul_and_fits_an_index(text):
    cell = as_text(text)
    assert "\0" not in cell
    assert len(cell) <= TEXT_MAX
    if "\0" not in text and len(text) <= TEXT_MAX:
        assert cell == text


def test_long_texts_stay_different():
    one, other = "x" * 5000 + "1", "x" * 5000 + "2"
    assert as_text(one) != as_text(other)
    assert as_text(one) == as_text(one)
    assert len(as_text(one)) == TEXT_MAX


def test_an_id_is_its_uuid_and_any_other_text_always_the_same_one():
    text = "0190f1a2-7c3d-7e4f-8a5b-6c7d8e9f0a1b"
    assert as_uuid(text) == UUID(text)
    assert as_uuid("junk") == as_uuid("junk") != as_uuid("other")


@pytest.mark.parametrize("number", [0, -1, INTEGER_MAX, -INTEGER_MAX])
def test_a_number_that_fits_stays(number):
    assert as_integer(number) == number


def test_a_number_that_does_not_fit_is_cut():
    assert as_integer(1 << 80) == INTEGER_MAX
    assert as_integer(-(1 << 80)) == -INTEGER_MAX


def test_a_moment_is_in_utc():
    east = datetime(2030, 1, 1, 3, tzinfo=timezone(timedelta(hours=3)))
    assert as_moment(east) == datetime(2030, 1, 1, tzinfo=UTC)
    assert as_moment(datetime(2030, 1, 1)) == datetime(2030, 1, 1, tzinfo=UTC)
    assert as_moment(east).utcoffset() == timedelta(0)
    edge = datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=3)))
    assert as_moment(edge) == datetime(1, 1, 1, tzinfo=UTC)


@given(
    st.recursive(st.none() | st.text() | st.integers(), lambda inner: st.lists(inner, max_size=4))
)
def test_json_loses_nothing_but_nul(value):
    text = as_json(msgspec.json.encode(value))
    assert json.loads(text) == replaced(value)


def replaced(value):
    if isinstance(value, list):
        return [replaced(one) for one in value]
    return value.replace("\0", "\ufffd") if isinstance(value, str) else value


@pytest.mark.parametrize("text", ["\0", "\\\0", "\\u0000", "\\\\u0000", "a\0\0b", "\\\\\0"])
def test_nul_is_told_from_a_backslash_before_its_name(text):
    assert json.loads(as_json(msgspec.json.encode(text))) == text.replace("\0", "\ufffd")


@pytest.mark.parametrize(
    "data",
    [b'{"a":1e999}', b'"\\ud800"', b'"\xff"', b"[" * 5000 + b"]" * 5000, b"", b"{", b"[1,]"],
)
def test_what_is_no_json_becomes_null(data):
    assert as_checked_json(data) == "null"


def test_json_of_others_is_kept():
    assert json.loads(as_checked_json(b'{"a": [1, 2.5, "\\u0000x", null]}')) == {
        "a": [1, 2.5, "\ufffdx", None]
    }
