import pytest

from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.shapes import check_shape, find_fault, optional, record

STEP = {
    "type": "object",
    "properties": {
        "step": {"type": "integer", "minimum": 0, "maximum": 10},
        "loss": {"type": ["number", "null"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
        "mode": {"enum": ["train", "eval"]},
    },
    "required": ["step"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        ({"step": 1}, None),
        ({"step": 1, "loss": None, "tags": ["a"], "mode": "eval"}, None),
        ({"step": 1.0}, None),
        ({}, "data.step is missing"),
        ({"step": "1"}, "data.step is not integer"),
        ({"step": True}, "data.step is not integer"),
        ({"step": 1.5}, "data.step is not integer"),
        ({"step": -1}, "data.step is less than 0"),
        ({"step": 11}, "data.step is more than 10"),
        ({"step": 1, "loss": "x"}, "data.loss is not number or null"),
        ({"step": 1, "tags": ["abcd"]}, "data.tags[0] is longer than 3"),
        ({"step": 1, "tags": ["a"] * 3}, "data.tags is longer than 2"),
        ({"step": 1, "mode": "x"}, "data.mode is none of ['train', 'eval']"),
        ({"step": 1, "more": 1}, "data.more is not known"),
    ],
)
def test_what_is_wrong_with_data(data, fault):
    check_shape(STEP)
    assert find_fault(STEP, data) == fault


@pytest.mark.parametrize(
    "shape",
    [
        5,
        {"typ": "object"},
        {"type": "float"},
        {"type": 3},
        {"properties": []},
        {"properties": {"a": 5}},
        {"items": "string"},
        {"required": "a"},
        {"required": [1]},
        {"enum": 1},
        {"minimum": "1"},
        {"additionalProperties": 3},
        {"description": "x" * 40_000},
    ],
)
def test_what_is_no_shape(shape):
    with pytest.raises(InvalidArgument):
        check_shape(shape)


def test_a_record_asks_for_its_fields_and_lets_others_be():
    shape = record(key="string", loss=optional("number"))
    check_shape(shape)
    assert find_fault(shape, {"key": "a", "more": 1}) is None
    assert find_fault(shape, {"key": "a", "loss": None}) is None
    assert find_fault(shape, {"loss": 1.0}) == "data.key is missing"
