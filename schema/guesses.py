"""What somebody may have meant who wrote a name that nobody knows. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

LIKENESS_MIN: Final = 0.6
NAMED_MAX: Final = 40


def guess(word: str, known: Iterable[str]) -> str:
    """The known name that is most like a word; "" when none is."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=LIKENESS_MIN)
    return found[0] if found else ""


def suggest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or "" when no known name is like the word: the end of a sentence."""
    found = guess(word, known)
    return f"; did you mean {found!r}?" if found else ""


def name_choices(known: Iterable[str]) -> str:
    """The known names in a row, not too many of them."""
    names = list(known)
    more = ", ..." if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more
