"""Which blocks a node gives up first. Pure functions of what is known about the blocks.

LRU         the one that was not used for the longest time
LFU         the one that was used least often; among equals the least recently used. Counts age:
            all are halved now and then (Einziger, Friedman, Manes: TinyLFU, 2017, section 3.3)
PRIORITY    the one that its writer gave the lowest priority; among equals the least recently
            used
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

AGE_AFTER_USES = 8
"""Counts are halved after so many uses for each block."""

USES_MAX = 15
"""More uses do not make a block any dearer: it must be possible to forget it."""


class BlockPolicy(StrEnum):
    LRU = "lru"
    LFU = "lfu"
    PRIORITY = "priority"


class Occupant(NamedTuple):
    """A block that may go. `used_at` rises with each use of any block."""

    key: bytes
    size_bytes: int
    used_at: int
    uses: int = 0
    priority: int = 0


def rank(occupant: Occupant, policy: BlockPolicy) -> tuple[int, int]:
    """What a block is worth: the lowest goes first."""
    match policy:
        case BlockPolicy.LRU:
            return 0, occupant.used_at
        case BlockPolicy.LFU:
            return min(occupant.uses, USES_MAX), occupant.used_at
        case BlockPolicy.PRIORITY:
            return occupant.priority, occupant.used_at


def choose_victims(
    occupants: Iterable[Occupant], count: int, policy: BlockPolicy
) -> tuple[bytes, ...]:
    """The keys of the `count` blocks that are worth least, the worst first; ties by key."""
    ordered = sorted(occupants, key=lambda one: (*rank(one, policy), one.key))
    return tuple(one.key for one in ordered[:count])


def is_time_to_age(uses_since: int, blocks: int) -> bool:
    """Whether counts are to be halved, so many uses after the last time."""
    return uses_since >= AGE_AFTER_USES * max(1, blocks)


def aged(uses: Mapping[bytes, int]) -> dict[bytes, int]:
    """The counts, halved; those that reach 0 are left out."""
    return {key: count // 2 for key, count in uses.items() if count > 1}
