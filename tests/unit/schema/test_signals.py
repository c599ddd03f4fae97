import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.signals import (
    DATA_BYTES_MAX,
    TOPIC_CHARS_MAX,
    TOPIC_TOKENS_MAX,
    encode_data,
    matches,
    parse_pattern,
    parse_reader,
    parse_topic,
)

TOKENS = st.sampled_from(["a", "b", "weights", "e-1", "X_9"])
TOPICS = st.lists(TOKENS, min_size=1, max_size=5).map(".".join)


@pytest.mark.parametrize("text", ["a", "weights.published", "engine.load.vllm-0", "A.b_C.9"])
def test_topics(text):
    assert parse_topic(text) == text
    assert parse_pattern(text) == text


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            ".",
            "a.",
            ".a",
            "a..b",
            "a b",
            "ä",
            "a.*",
            "a.>",
            ">",
            "a\n",
            "a\r\nb",
            "a/b",
            None,
            7,
        ),
        *("x" * (TOPIC_CHARS_MAX + 1), ".".join("a" * (TOPIC_TOKENS_MAX + 1))),
    ],
)
def test_what_is_no_topic(text):
    with pytest.raises(InvalidArgument, match="is not a topic"):
        parse_topic(text)


@pytest.mark.parametrize("text", ["", ".>", ">.a", "a.>.b", "a**", "a.b>", ">>", "a..>", None])
def test_what_is_no_pattern(text):
    with pytest.raises(InvalidArgument, match="not a pattern"):
        parse_pattern(text)


@pytest.mark.parametrize(
    ("pattern", "topic", "is_chosen"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a", False),
        ("a.b", "a.b.c", False),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("*.b", "a.b", True),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        ("*.>", "a.b", True),
        (">", "a", True),
        ("a.*.c", "a.b.c", True),
        ("a.*.c", "a.b.d", False),
    ],
)
def test_patterns_choose_topics(pattern, topic, is_chosen):
    assert matches(parse_pattern(pattern), parse_topic(topic)) is is_chosen


@given(TOPICS)
def test_every_topic_chooses_itself_and_is_chosen_by_all(topic):
    assert matches(parse_pattern(topic), topic)
    assert matches(parse_pattern(">"), topic)
    assert matches(parse_pattern(".".join("*" for _ in topic.split("."))), topic)


def test_data_is_an_object_of_bounded_size():
    assert encode_data({"key": "a@1", "sizes": [1, 2.5, None]}) == (
        b'{"key":"a@1","sizes":[1,2.5,null]}'
    )
    most = {"a": "x" * (DATA_BYTES_MAX - len('{"a":""}'))}
    assert len(encode_data(most)) == DATA_BYTES_MAX
    nested: dict[str, object] = {}
    for _ in range(5000):
        nested = {"a": nested}
    for bad in (
        {"a": "x" * DATA_BYTES_MAX},
        {"a": object()},
        {"a": "\ud800"},
        nested,
        {"a": math.nan},
        {"a": [math.inf]},
        {"a": 10**30},
        {"a": b"bytes"},
        {"a": {1, 2}},
        {"a": {1: 2}},
        ["a"],
        "a",
        None,
    ):
        with pytest.raises(InvalidArgument, match="The data of a signal"):
            encode_data(bad)


def test_names_of_readers():
    assert parse_reader("rollout-0_A") == "rollout-0_A"
    for bad in ("", "a.b", "a b", "x" * 65, ">", None):
        with pytest.raises(InvalidArgument, match="name of a reader"):
            parse_reader(bad)
