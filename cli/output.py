"""What a command gives back: data for machines and blocks of text for people. Values only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tensorcast.schema.errors import TensorCastError

ID_CHARS = 12
"""So much of an artifact's id is shown in tables; every command accepts that instead of all."""


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    NDJSON = "ndjson"


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows under titles. `right` names the columns of numbers, `fold` those whose long text may be
    broken over several lines."""

    titles: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    right: frozenset[str] = frozenset()
    fold: frozenset[str] = frozenset()
    empty: str = "Nothing there."
    has_head: bool = True


@dataclass(frozen=True)
class Fields:
    """One thing, a line for each property. Empty values are left out."""

    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Note:
    """A sentence."""

    text: str


@dataclass(frozen=True)
class Heading:
    """The title of the block that follows."""

    text: str


Block = Table | Fields | Note | Heading


@dataclass(frozen=True, kw_only=True)
class Answer:
    """`data` is what JSON and YAML show, `blocks` what people see, `brief` the lines that `--quiet`
    leaves (ids). `error` is reported after the data and gives the exit code; without one the exit
    code is `exit_code`."""

    data: object
    blocks: Callable[[], Sequence[Block]]
    brief: tuple[str, ...] = ()
    error: TensorCastError | None = None
    exit_code: int = 0


@dataclass(frozen=True, kw_only=True)
class Flow:
    """An answer that comes in pages and is printed as it comes. `table` draws one page; `closing`
    gives a last line for people, or none."""

    pages: Iterator[Sequence[object]]
    table: Callable[[Sequence[object]], Table]
    brief: Callable[[object], str]
    empty: str = "Nothing there."
    closing: Callable[[], str] = lambda: ""


@dataclass(frozen=True)
class Nothing:
    """The command has done all that there was to do; nothing is printed."""

    exit_code: int = 0
    notes: tuple[str, ...] = field(default=())


Result = Answer | Flow | Nothing


def shorten(artifact: str | None) -> str:
    """An artifact's id as tables show it."""
    return artifact[:ID_CHARS] if artifact else ""


def shorten_operation(operation: str) -> str:
    """An operation's id as tables show it: the beginning is enough to name it."""
    return operation[: ID_CHARS + 3]
