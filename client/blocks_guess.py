"""Which node is asked first for blocks that are not here, before anybody has said who has them.

The blocks of one space that an engine gets from other nodes one after the other mostly lie on one
of them. After some that did, the next are asked for there right away: that spares the question to
this node's mover. A wrong guess costs one more exchange, and the next one takes longer to be made.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

SURE: Final = 2
"""So many gets in a row from one node, and it is asked first."""
SURE_MAX: Final = 256
"""Wrong guesses double that, up to here; right ones halve it again."""
SPACES_MAX: Final = 256
"""Of so many spaces it is known; then all is forgotten."""
GUESSED_MAX: Final = 64
"""For more blocks the mover is asked: its answer is cheap beside their bytes, a wrong guess would
not be."""


class _Trail:
    """Who had the last blocks of a space, how many gets in a row, and how many it takes."""

    __slots__ = ("address", "needed", "streak")

    def __init__(self) -> None:
        self.address = ""
        self.streak = 0
        self.needed = SURE


class BlockGuesses:
    """By space. For any number of threads: a guess that is a little wrong does no harm."""

    def __init__(self) -> None:
        self._trails: dict[bytes, _Trail] = {}

    def address(self, keys: Sequence[bytes]) -> str | None:
        """Whom to ask first for these packed keys; None: nobody."""
        if not self._trails or not 0 < len(keys) <= GUESSED_MAX:
            return None
        trail = self._trails.get(_space(keys))
        return trail.address if trail is not None and trail.streak >= trail.needed else None

    def learn(
        self,
        keys: Sequence[bytes],
        missing: Mapping[int, tuple[str, ...]],
        arrived: Collection[int],
    ) -> None:
        """What a get without a guess found: `missing` here, with who was said to have each, and
        what arrived."""
        trail = self._trails.get(_space(keys))
        if trail is None:
            if len(self._trails) >= SPACES_MAX:
                self._trails.clear()
            trail = self._trails[_space(keys)] = _Trail()
        holders = {names[0] if names else "" for names in missing.values()}
        holder = holders.pop() if len(holders) == 1 and len(arrived) == len(missing) else ""
        if holder and holder == trail.address:
            trail.streak += 1
        else:
            trail.address, trail.streak = holder, 1 if holder else 0

    def judge(self, keys: Sequence[bytes], *, is_right: bool) -> None:
        """Whether a guess brought all blocks."""
        trail = self._trails.get(_space(keys))
        if trail is None:
            return
        if is_right:
            trail.needed = max(SURE, trail.needed // 2)
        else:
            trail.needed = min(SURE_MAX, trail.needed * 2)
            trail.streak = 0


def _space(keys: Sequence[bytes]) -> bytes:
    """What the first key begins with: its space (`schema/blocks.pack_space`)."""
    return keys[0][: 1 + keys[0][0]]
