"""How the blocks in engines' own caches look to people, and how prompts are written. Pure but for
`read_tokens`."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from tensorcast.cli.output import Table
from tensorcast.cli.units import format_age
from tensorcast.schema.api_engine_blocks import EngineView, PrefixHolder
from tensorcast.schema.errors import InvalidArgument, NotFound

_BETWEEN = re.compile(r"[\s,\[\]]+")


def read_tokens(text: str) -> tuple[int, ...]:
    """The ids of tokens: numbers with commas or spaces between (also as JSON), `@FILE` or `-` for
    standard input. Raises InvalidArgument, NotFound."""
    if text == "-":
        text = sys.stdin.read()
    elif text.startswith("@"):
        try:
            text = Path(text[1:]).read_text(errors="replace")
        except OSError as error:
            raise NotFound(f"{text[1:]} cannot be read: {error.strerror}.") from error
    words = [word for word in _BETWEEN.split(text) if word]
    if not words or not all(word.isascii() and word.isdigit() for word in words):
        raise InvalidArgument(
            "These are no ids of tokens.", hint="Write numbers: 1,22172,263; or @FILE, or -."
        )
    return tuple(map(int, words))


def table_views(found: Sequence[EngineView], now: datetime) -> Table:
    """One engine a line."""
    return Table(
        titles=("engine", "blocks", "of tokens", "known", "heard", "why"),
        rows=[
            (
                one.engine,
                str(one.blocks),
                ", ".join(map(str, one.block_tokens)),
                one.state,
                format_age(one.heard_at or one.at, now),
                one.reason,
            )
            for one in found
        ],
        right=frozenset({"blocks", "heard"}),
        fold=frozenset({"engine", "why"}),
        empty="No engine is watched. `tcctl engine watch URL` watches one.",
    )


def table_holders(found: Sequence[PrefixHolder]) -> Table:
    """One engine a line, the one with the longest part first."""
    return Table(
        titles=("engine", "tokens", "blocks", "where", "known", "url", "why"),
        rows=[
            (
                one.engine,
                str(one.tokens),
                str(one.blocks),
                ", ".join(f"{medium} {count}" for medium, count in one.media.items()),
                one.state,
                one.url,
                one.reason,
            )
            for one in found
        ],
        right=frozenset({"tokens", "blocks"}),
        fold=frozenset({"engine", "where", "why"}),
        empty="No engine is known to hold its beginning.",
    )
