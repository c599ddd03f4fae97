"""Words around values: numbers of things, and the end of a sentence. Pure."""

from __future__ import annotations


def tell_count(count: int, thing: str, things: str = "") -> str:
    """As in "1 node" and "2 nodes"; `things` is the plural where an "s" does not make it."""
    return f"{count} {thing if count == 1 else things or thing + 's'}"


def end_sentence(text: str) -> str:
    """The text with one full stop, or the mark that it ends with."""
    plain = text.rstrip()
    return plain if plain.endswith((".", "!", "?")) else f"{plain}."
