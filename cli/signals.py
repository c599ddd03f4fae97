"""How signals look to people, and how they are written on a command line. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

import msgspec

from tensorcast.cli.output import Flow, Table
from tensorcast.cli.units import format_age, format_second, parse_position
from tensorcast.client.signals import FIRST, LAST, NEW, Reader, Start
from tensorcast.schema.api_signals import TopicInfo
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.signals import Signal

DATA_CHARS = 120


def parse_start(text: str, now: datetime) -> Start:
    """Where to read from: new, first, last, a position or a time. Raises InvalidArgument."""
    return text if text in (NEW, FIRST, LAST) else parse_position(text, now)


def parse_data(text: str) -> dict[str, object]:
    """The data of a signal. Raises InvalidArgument when it is no JSON object."""
    try:
        return msgspec.json.decode(text.encode(), type=dict[str, object])
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise InvalidArgument(
            f"The data is not a JSON object: {error}.", hint='As in --data \'{"key": "a@1"}\'.'
        ) from error


def shorten_data(data: object) -> str:
    """The data as one short line."""
    text = "" if data in (None, {}) else msgspec.json.encode(data).decode()
    return text if len(text) <= DATA_CHARS else text[: DATA_CHARS - 3] + "..."


def table_topics(found: Sequence[TopicInfo], now: datetime) -> Table:
    """One topic a line."""
    return Table(
        titles=("topic", "signals", "last", "by", "age", "data"),
        rows=[
            (
                one.topic,
                str(one.emitted),
                str(one.seq),
                one.actor,
                format_age(one.at, now),
                shorten_data(one.data),
            )
            for one in found
        ],
        right=frozenset({"signals", "last", "age"}),
        fold=frozenset({"data"}),
        empty="No signals. `tcctl signal emit` emits one.",
    )


def table_readers(found: Sequence[Reader]) -> Table:
    """One durable reader a line."""
    return Table(
        titles=("name", "reads", "done to", "waiting", "not acknowledged", "again"),
        rows=[
            (
                one.name,
                one.pattern,
                str(one.seq),
                str(one.waiting),
                str(one.unacknowledged),
                str(one.redelivered),
            )
            for one in found
        ],
        right=frozenset({"done to", "waiting", "not acknowledged", "again"}),
        empty="No durable readers. `tcctl signal tail --durable` makes one.",
    )


def table_shapes(found: Mapping[str, object], given: frozenset[str]) -> Table:
    """One shape a line."""
    return Table(
        titles=("topics", "by", "shape"),
        rows=[
            (pattern, "user" if pattern in given else "system", shorten_data(shape))
            for pattern, shape in found.items()
        ],
        fold=frozenset({"shape"}),
    )


def signal_flow(pages: Iterator[Sequence[Signal]]) -> Flow:
    """Signals as they come."""
    return Flow(pages=pages, table=_table_signals, brief=_brief, empty="No signals.")


def _brief(item: object) -> str:
    return str(item.seq) if isinstance(item, Signal) else ""


def _table_signals(page: Sequence[object]) -> Table:
    return Table(
        titles=("seq", "at", "topic", "by", "data"),
        rows=[
            (str(one.seq), format_second(one.at), one.topic, one.actor, shorten_data(one.data))
            for one in page
            if isinstance(one, Signal)
        ],
        right=frozenset({"seq"}),
        fold=frozenset({"data"}),
        empty="No signals.",
    )
