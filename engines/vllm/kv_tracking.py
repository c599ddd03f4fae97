"""What an engine holds, folded from its KV events. Pure.

The engine counts its batches from 0 in each of its lives. A batch that is not the next one is old,
or of a new life, or tells that some are missing; which of these follows from its number and time.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Final

import msgspec

from tensorcast.engines.vllm.kv_batches import Batch, Cleared, Happening, Removed, Stored
from tensorcast.schema.engine_blocks import UNNAMED
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.prefixes import next_prefix, root_prefix

NAMES_MAX: Final = 2_000_000
"""Most names of prefixes that are remembered, also of blocks that are gone."""


class Verdict(Enum):
    """What a batch is, to who has seen all before `expected`."""

    NEXT = "next"
    OLD = "old"
    GAP = "gap"
    RESTARTED = "restarted"


class Held(msgspec.Struct, frozen=True):
    """Blocks that came, with the names of their prefixes (`UNNAMED`: not known)."""

    medium: str
    group: int
    block_tokens: int
    hashes: tuple[bytes, ...]
    prefixes: tuple[bytes, ...]


class Gone(msgspec.Struct, frozen=True):
    """Blocks that went."""

    medium: str
    group: int
    hashes: tuple[bytes, ...]


class Anew(msgspec.Struct, frozen=True):
    """All that was said before does not count; `is_exact`: what follows is all that there is."""

    is_exact: bool
    reason: str


Change = Held | Gone | Anew
_Block = tuple[bytes, int]
"""The name of a block's prefix, and its size in tokens."""


class Tracker:
    """The blocks of one engine, and how far its record was read. Modified by all its methods but
    `judge` and `held`."""

    def __init__(self) -> None:
        self.expected = 0
        self.last_ts = float("-inf")
        self.count = 0
        self._held: dict[tuple[str, int], dict[bytes, _Block]] = {}
        self._names: dict[tuple[int, bytes], bytes] = {}

    def judge(self, seq: int, ts: float) -> Verdict:
        """What the batch at `seq` is."""
        if seq == self.expected:
            return Verdict.NEXT
        if seq > self.expected:
            return Verdict.GAP
        return Verdict.RESTARTED if ts > self.last_ts else Verdict.OLD

    def begin(self) -> Anew:
        """Another life of the engine: nothing is known, and nothing is there yet."""
        self._forget()
        self._names.clear()
        self.expected, self.last_ts = 0, float("-inf")
        return Anew(is_exact=True, reason="")

    def lose(self, until: int, reason: str) -> Anew:
        """The batches before `until` are lost for good: what was held may be gone, so only what is
        told from now on counts."""
        self._forget()
        lost = f"Batches {self.expected} to {until - 1} are lost: "
        self.expected, is_gap = until, until > self.expected
        return Anew(is_exact=False, reason=(lost if is_gap else "") + reason)

    def apply(self, seq: int, batch: Batch) -> list[Change]:
        """What the next batch changes."""
        assert seq == self.expected, "who calls has judged it"
        self.expected, self.last_ts = seq + 1, batch.ts
        return [self._take(one) for one in batch.happenings]

    def held(self) -> Iterator[Held]:
        """All that it holds, as it would be told anew."""
        for (medium, group), blocks in self._held.items():
            sizes = {size for _, size in blocks.values()}
            for size in sizes:
                chosen = {h: name for h, (name, its) in blocks.items() if its == size}
                yield Held(medium, group, size, tuple(chosen), tuple(chosen.values()))

    def _forget(self) -> None:
        self._held.clear()
        self.count = 0

    def _take(self, one: Happening) -> Change:
        match one:
            case Stored():
                return self._store(one)
            case Removed():
                held = self._held.get((one.medium, one.group), {})
                for hash_ in one.hashes:
                    self.count -= held.pop(hash_, None) is not None
                return Gone(one.medium, one.group, one.hashes)
            case Cleared():
                self._forget()
                return Anew(is_exact=True, reason="The engine cleared its cache.")

    def _store(self, one: Stored) -> Held:
        names = self._name(one)
        held = self._held.setdefault((one.medium, one.group), {})
        before = len(held)
        held.update(
            (h, (name, one.block_tokens)) for h, name in zip(one.hashes, names, strict=True)
        )
        self.count += len(held) - before
        return Held(one.medium, one.group, one.block_tokens, one.hashes, names)

    def _name(self, one: Stored) -> tuple[bytes, ...]:
        """The names of the prefixes, if that of the parent is known."""
        parent = (
            root_prefix(one.block_tokens)
            if one.parent is None
            else self._names.get((one.group, one.parent))
        )
        if parent is None or not one.tokens:
            return (UNNAMED,) * len(one.hashes)
        names: list[bytes] = []
        size = one.block_tokens
        for place, (hash_, extra) in enumerate(zip(one.hashes, one.extras, strict=True)):
            try:
                parent = next_prefix(parent, one.tokens[place * size : (place + 1) * size], extra)
            except InvalidArgument:  # tokens that no model has
                return (UNNAMED,) * len(one.hashes)
            names.append(parent)
            self._remember(one.group, hash_, parent)
        return tuple(names)

    def _remember(self, group: int, hash_: bytes, name: bytes) -> None:
        if len(self._names) >= NAMES_MAX:
            kept = {(g, h) for (_, g), blocks in self._held.items() for h in blocks}
            self._names = {key: n for key, n in self._names.items() if key in kept}
        self._names[group, hash_] = name


def merge_changes(changes: list[Change]) -> list[Change]:
    """Fewer changes that come to the same: neighbours of one kind and place are one, and what came
    before everything began anew is left out."""
    merged: list[Change] = []
    for change in changes:
        if isinstance(change, Anew):
            merged.clear()
            merged.append(change)
            continue
        last = merged[-1] if merged else None
        if isinstance(change, Held) and isinstance(last, Held) and _place(last) == _place(change):
            merged[-1] = msgspec.structs.replace(
                last,
                hashes=last.hashes + change.hashes,
                prefixes=last.prefixes + change.prefixes,
            )
        elif isinstance(change, Gone) and isinstance(last, Gone) and _spot(last) == _spot(change):
            merged[-1] = msgspec.structs.replace(last, hashes=last.hashes + change.hashes)
        else:
            merged.append(change)
    return merged


def _place(one: Held) -> tuple[str, int, int, int]:
    return one.medium, one.group, one.block_tokens, len(one.hashes[0])


def _spot(one: Gone) -> tuple[str, int, int]:
    return one.medium, one.group, len(one.hashes[0])
