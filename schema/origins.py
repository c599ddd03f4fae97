"""From what an artifact was made, as labels and safetensors files say it. Pure.

Labels of an artifact and the metadata of a file have the same two names. A file that holds a part
of an artifact says so, and whoever puts it hands that on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

MADE_FROM: Final = "made-from"
MADE_BY: Final = "made-by"
"""What it was made from (ids or keys, commas between), and how."""
SOURCES_MAX: Final = 64
TEXT_MAX: Final = 1024


def note_origin(source: str, how: str) -> dict[str, str]:
    """Labels of what was made from an artifact."""
    return {MADE_FROM: source, MADE_BY: how[:TEXT_MAX]}


def split_sources(text: str) -> tuple[str, ...]:
    """The ids or keys in a `made-from`."""
    return tuple(filter(None, map(str.strip, text.split(","))))


def read_origins(notes: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Labels of what is made of several files, by their metadata; none when no file says
    anything, or when it says too much to be true."""
    sources: dict[str, None] = {}
    ways: dict[str, None] = {}
    for note in notes:
        found = split_sources(note.get(MADE_FROM, ""))
        sources.update(dict.fromkeys(found))
        if found and note.get(MADE_BY):
            ways[note[MADE_BY]] = None
    labels = {MADE_FROM: ",".join(sources), MADE_BY: ", ".join(ways)}
    if not 0 < len(sources) <= SOURCES_MAX or any(len(t) > 4 * TEXT_MAX for t in labels.values()):
        return {}
    return {name: text for name, text in labels.items() if text}
