"""Signals: typed words about what happened, on topics, for whoever reads them.

A topic is a path of tokens (`weights.published`, `engine.load.e1`). A pattern chooses topics: `*`
stands for one token, `>` at the end for one or more. So the topics of a log can be chosen where it
lies, and nobody is sent what he does not want.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated, Final, NewType

import msgspec
from msgspec import Meta

from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.ids import EventId, Seq
from tensorcast.schema.plain import check_plain

Topic = NewType("Topic", str)
Pattern = NewType("Pattern", str)

TOPIC_CHARS_MAX: Final = 200
TOPIC_TOKENS_MAX: Final = 16
DATA_BYTES_MAX: Final = 64 << 10
"""A signal says that something is there, and where; it never carries the thing."""
EVERYTHING: Final = Pattern(">")
READER_CHARS_MAX: Final = 64
_TOKEN: Final = re.compile(r"[A-Za-z0-9_:@-]+")
_READER: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{READER_CHARS_MAX}}}")

TopicText = Annotated[str, Meta(min_length=1, max_length=TOPIC_CHARS_MAX)]


class Signal(msgspec.Struct, frozen=True, kw_only=True):
    """A signal as readers get it: its position in the log, and what was said. `id` is that of its
    event; `delivery` counts, from 1, how often it was given to this reader."""

    seq: Seq
    topic: Topic
    at: datetime
    actor: str
    data: dict[str, object]
    id: EventId
    delivery: int = 1


def parse_topic(text: str) -> Topic:
    """A topic: 1 to 16 tokens of letters, digits, '_', ':', '@' and '-', with dots between, 200
    characters at most. Raises InvalidArgument."""
    if not isinstance(text, str) or not _is_path(text, _is_token):
        raise InvalidArgument(
            f"{text!r} is not a topic.",
            hint="Write words of letters, digits, '_', '-' with dots between: weights.published.",
        )
    return Topic(text)


def parse_pattern(text: str) -> Pattern:
    """A pattern of topics: a topic in which `*` may stand for any one token, and a last `>` for one
    or more. Raises InvalidArgument."""
    head = text.removesuffix(".>") if isinstance(text, str) else ""
    if text == EVERYTHING or _is_path(head, lambda token: token == "*" or _is_token(token)):
        return Pattern(text)
    raise InvalidArgument(
        f"{text!r} is not a pattern of topics.",
        hint="Write a topic, with '*' for any word and '>' at the end for all below: engine.*.>",
    )


def _is_token(text: str) -> bool:
    return bool(_TOKEN.fullmatch(text))


def _is_path(text: str, is_token: Callable[[str], bool]) -> bool:
    tokens = text.split(".")
    return (
        len(text) <= TOPIC_CHARS_MAX
        and len(tokens) <= TOPIC_TOKENS_MAX
        and all(is_token(token) for token in tokens)
    )


def parse_reader(text: str) -> str:
    """The name of a durable reader. Raises InvalidArgument."""
    if not isinstance(text, str) or not _READER.fullmatch(text):
        raise InvalidArgument(
            f"{text!r} is not the name of a reader.",
            hint=f"Use 1 to {READER_CHARS_MAX} letters, digits, '_' and '-'.",
        )
    return text


def matches(pattern: Pattern, topic: Topic) -> bool:
    """Whether the pattern chooses the topic."""
    wanted, tokens = pattern.split("."), topic.split(".")
    if wanted[-1] == EVERYTHING:
        wanted.pop()
        if len(tokens) <= len(wanted):
            return False
        tokens = tokens[: len(wanted)]
    return len(wanted) == len(tokens) and all(
        one in ("*", token) for one, token in zip(wanted, tokens, strict=True)
    )


def encode_data(data: Mapping[str, object]) -> bytes:
    """The data of a signal as JSON. Raises InvalidArgument when it is no object that JSON can
    hold, or too large."""
    if not isinstance(data, Mapping):
        raise InvalidArgument(
            f"The data of a signal is an object with names, not {type(data).__name__}.",
            hint='As in {"key": "llama-8b@1"}.',
        )
    try:
        encoded = msgspec.json.encode(dict(data))
        msgspec.json.decode(encoded, type=dict[str, object])
        check_plain(data, "The data of a signal")
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidArgument(
            f"The data of a signal cannot be JSON: {error}.", hint="Use text, numbers, lists, maps."
        ) from error
    check_size(len(encoded))
    return encoded


def check_size(size_bytes: int) -> None:
    """Raises InvalidArgument for data that is too large."""
    if size_bytes > DATA_BYTES_MAX:
        raise InvalidArgument(
            f"The data of a signal takes {size_bytes} bytes; {DATA_BYTES_MAX} are the limit.",
            hint="Put large things as artifacts, and name them in the signal.",
        )
