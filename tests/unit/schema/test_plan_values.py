from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.plan_values import (
    Reference,
    ValueType,
    check_value,
    describe_type,
    dig,
    fits,
    parse_reference,
    references_in,
    resolve,
    type_of,
    whole_reference,
)

T = ValueType
VALUES = {"a": {"node": "n2", "count": 3, "data": {"x": [10, 20]}}, "input": {"v": 7}}


def lookup(reference: Reference) -> object:
    return dig(VALUES[reference.root], reference, 0)


@pytest.mark.parametrize(
    ("value", "resolved"),
    [
        ("plain", "plain"),
        ("${a.node}", "n2"),
        ("${a.count}", 3),
        ("${a.data.x.1}", 20),
        ("m-${a.node}@${input.v}", "m-n2@7"),
        ({"k": ["${a.count}", {"deep": "${a.data}"}]}, {"k": [3, {"deep": {"x": [10, 20]}}]}),
        (5, 5),
        (None, None),
    ],
)
def test_references_stand_for_values(value, resolved):
    assert resolve(value, lookup) == resolved


@pytest.mark.parametrize("text", ["${}", "${ a }", "${a..b}", "${1a}", "${a.b c}", "${a.}"])
def test_what_is_no_reference_is_refused_in_one_sentence(text):
    with pytest.raises(InvalidArgument, match="is no reference"):
        resolve(text, lookup)
    with pytest.raises(InvalidArgument):
        list(references_in({"k": [text]}))


def test_what_cannot_be_part_of_a_text_is_refused():
    with pytest.raises(InvalidArgument, match="cannot be part of a text"):
        resolve("x ${a.data}", lookup)


@pytest.mark.parametrize("path", ["a.data.y", "a.data.x.9", "a.node.z", "a.data.x.y"])
def test_a_way_that_leads_nowhere_is_refused(path):
    with pytest.raises(InvalidArgument, match="stands for nothing"):
        lookup(parse_reference(path))


def test_references_are_found_however_deep():
    found = references_in({"a": ["${x.y}", {"b": "1 ${z} 2 ${w.v}"}], "c": 3})
    assert [str(one) for one in found] == ["${x.y}", "${z}", "${w.v}"]
    assert whole_reference("${x.y}") == Reference("x", ("y",))
    assert whole_reference("a ${x.y}") is None


@pytest.mark.parametrize(
    ("given_type", "wanted", "fit"),
    [
        (T.KEY, T.ARTIFACT, True),
        (T.NODE, T.ARTIFACT, False),
        (T.INTEGER, T.NUMBER, True),
        (T.NUMBER, T.INTEGER, False),
        (T.TEXT, T.NODE, True),
        (T.NODE, T.TEXT, True),
        (T.LIST, T.NODES, True),
        (T.NODES, T.LIST, True),
        (T.NODES, T.ENGINES, False),
        (T.ANY, T.NODE, True),
        (T.MAPPING, T.TEXT, False),
        (T.BOOLEAN, T.INTEGER, False),
    ],
)
def test_which_types_fit(given_type, wanted, fit):
    assert fits(given_type, wanted) is fit


@pytest.mark.parametrize(
    ("value", "wanted", "is_right"),
    [
        ("n1", T.NODE, True),
        ("", T.NODE, False),
        (7, T.NODE, False),
        (["n1"], T.NODES, True),
        (["n1", 2], T.NODES, False),
        ("n1", T.NODES, False),
        (True, T.INTEGER, False),
        (3, T.NUMBER, True),
        ("${a.b}", T.TEXT, True),
        ({}, T.MAPPING, True),
        (None, T.ANY, True),
    ],
)
def test_values_are_checked(value, wanted, is_right):
    if is_right:
        assert check_value(value, wanted, "It") == value
    else:
        with pytest.raises(InvalidArgument, match=f"It must be {describe_type(wanted)}"):
            check_value(value, wanted, "It")


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
def test_any_value_has_a_type_and_any_text_is_resolved_or_refused(value):
    assert type_of(value) in T
    with suppress(InvalidArgument):
        resolve(value, lambda reference: reference.root)
