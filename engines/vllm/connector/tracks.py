"""What is decided for one request: which of its blocks are loaded and which are saved. Plain
functions of values; block numbers count from the begin of the prompt."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol


class Tokens(Protocol):
    """The ids of a request's tokens, of which parts are read."""

    def __getitem__(self, part: slice, /) -> Sequence[int]: ...


@dataclass
class Track:
    """What the scheduler's side remembers of a request that is under way.

    `hashes` grows with the request (it is the engine's own list), as `tokens` does. `stored`:
    numbers of blocks that are in the store of this node, or are on their way there. `space`: that
    of its first step; KV computed since then belongs there or nowhere. `local`: blocks that the
    engine's own cache had. `pending`: save jobs that workers have not ended. `is_apart`: nothing of
    it is loaded or saved.
    """

    request_id: str
    space: str
    hashes: Sequence[bytes]
    tokens: Tokens = ()
    local: int = 0
    stored: set[int] = field(default_factory=set)
    block_ids: list[int] = field(default_factory=list)
    complete: int = 0
    next: int = 0
    may_save: bool = True
    may_load: bool = True
    is_apart: bool = False
    is_loading: bool = False
    is_started: bool = False
    retry_at_s: float = 0.0
    pending: set[int] = field(default_factory=set)


def find_matched(are_there: Sequence[bool], local_blocks: int, tokens: int, block_size: int) -> int:
    """How many blocks after the local ones can be loaded, all in a row. The last token of the
    request is never among them: computing it gives the next one."""
    last = min(len(are_there), (tokens - 1) // block_size)
    end = local_blocks
    while end < last and are_there[end]:
        end += 1
    return end - local_blocks


def all_there(states: Sequence[int], each: int, absent: int) -> list[bool]:
    """For each block whether all of its `each` pieces are somewhere."""
    return [absent not in states[at : at + each] for at in range(0, len(states), each)]


def find_unsaved(
    first: int, complete: int, known: int, stored: Collection[int], held: int
) -> list[int]:
    """The numbers of blocks to save: complete after this step, with a hash that is `known`, in one
    of the `held` blocks of the cache, and not in the store."""
    return [n for n in range(first, min(complete, known, held)) if n not in stored]


def merge_table(table: list[int], new: Iterable[int] | None, *, is_resumed: bool) -> list[int]:
    """The blocks of a request after the engine has given it `new` ones: all anew after a
    preemption."""
    if new is None:
        return table
    return list(new) if is_resumed else [*table, *new]


def usable_blocks(found: Sequence[bool]) -> int:
    """How many blocks at the begin are usable: one that is missing makes all after it useless."""
    for at, is_there in enumerate(found):
        if not is_there:
            return at
    return len(found)


def agree(weights: Collection[str | None]) -> str | None:
    """The weights that all workers have; None when one does not know, or they differ."""
    kinds = set(weights)
    return kinds.pop() if len(kinds) == 1 else None
