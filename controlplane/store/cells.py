"""Values made fit for Postgres: whatever an event holds, its row can be written. Pure.

Text without NUL, JSON that `jsonb` takes, numbers that fit, times with a zone, index keys of
bounded length. What these functions change is only how SQL sees it: the exact bytes are beside it.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

import msgspec

from tensorcast.schema.ids import derive_event_id

TEXT_MAX: Final = 600
"""Longest text of an indexed column, in characters: its bytes must fit a page of the index."""
INTEGER_MAX: Final = (1 << 63) - 1
_NUL_IN_JSON: Final = re.compile(rb"(?<!\\)((?:\\\\)*)\\u0000")


def as_text(text: str) -> str:
    """Text that a column takes; a too long one is cut, with a digest of the whole at its end."""
    text = text.replace("\0", "\N{REPLACEMENT CHARACTER}")
    if len(text) <= TEXT_MAX:
        return text
    return text[: TEXT_MAX - 33] + "~" + hashlib.blake2s(text.encode(), digest_size=16).hexdigest()


def as_uuid(text: str) -> UUID:
    """The UUID that the text is, or for any other text one that always stands for it."""
    try:
        return UUID(text)
    except ValueError:
        return UUID(derive_event_id(text, "", 0))


def as_integer(number: int) -> int:
    """A number that fits 64 bits with sign."""
    return max(-INTEGER_MAX, min(INTEGER_MAX, number))


def as_moment(moment: datetime) -> datetime:
    """A moment in UTC; one without a zone is taken for UTC."""
    if moment.tzinfo is None:
        return moment.replace(tzinfo=UTC)
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        return moment.replace(tzinfo=UTC)


def as_json(encoded: bytes) -> str:
    """JSON that `jsonb` takes. `encoded` was written by msgspec."""
    if b"\\u0000" not in encoded:
        return encoded.decode()
    return _NUL_IN_JSON.sub(rb"\1\\ufffd", encoded).decode()


def as_checked_json(data: bytes) -> str:
    """JSON of unknown origin, as `jsonb` takes it; `null` when it takes no such thing (a lone
    surrogate, a number without end)."""
    try:
        return as_json(msgspec.json.encode(msgspec.json.decode(data)))
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return "null"
