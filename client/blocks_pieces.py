"""Blocks whose bytes do not lie together: an engine keeps one run for each layer. They are copied
from there and to there without a copy in between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import xxhash

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_TOGETHER: Final = {memoryview}


class Pieces:
    """One block for `put_blocks` and for `into` of `get_blocks`: the rows of `tables`, one after
    the other. Each table is a writable array of uint8 with two dimensions whose rows are
    contiguous, wherever they lie. `nbytes`: the size of the block; `runs`: how many rows it has."""

    __slots__ = ("nbytes", "runs", "tables")
    readonly = False

    def __init__(self, tables: Sequence[NDArray[np.uint8]]) -> None:
        self.tables = tables
        self.nbytes = sum(table.shape[0] * table.shape[1] for table in tables)
        self.runs = sum(table.shape[0] for table in tables)

    def copy_to(self, target: memoryview) -> None:
        """Copies the block to where it lies together; without the GIL."""
        import numpy as np

        flat = np.frombuffer(target, np.uint8)
        at = 0
        for table in self.tables:
            size = table.shape[0] * table.shape[1]
            np.copyto(flat[at : at + size].reshape(table.shape), table)
            at += size

    def copy_from(self, source: memoryview) -> None:
        """Copies the block from where it lies together; without the GIL."""
        import numpy as np

        flat = np.frombuffer(source, np.uint8)
        at = 0
        for table in self.tables:
            size = table.shape[0] * table.shape[1]
            np.copyto(table, flat[at : at + size].reshape(table.shape))
            at += size

    def views(self) -> list[memoryview]:
        """The runs, in order."""
        return [memoryview(row) for table in self.tables for row in table]


Place: TypeAlias = memoryview | Pieces
"""Where the bytes of a block are: together, or in pieces."""


def flatten(places: Sequence[Place]) -> list[memoryview]:
    """All runs of some blocks, in order."""
    if set(map(type, places)) <= _TOGETHER:
        return list(places)  # type: ignore[arg-type]  # all are
    found: list[memoryview] = []
    for place in places:
        found += place.views() if isinstance(place, Pieces) else (place,)
    return found


def count_runs(place: Place) -> int:
    """In how many runs a block lies."""
    return place.runs if isinstance(place, Pieces) else 1


def make_digest(place: Place) -> bytes:
    """The digest of a block (`schema/blocks.DIGEST_BYTES`)."""
    if not isinstance(place, Pieces):
        return xxhash.xxh3_64_digest(place)
    state = xxhash.xxh3_64()
    for view in place.views():
        state.update(view)
    return state.digest()
