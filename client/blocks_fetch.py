"""Fetches blocks from the nodes that may have them: from all at once, and from the next one where a
node fails or lacks some. Blocks the calling thread."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final, NamedTuple

from tensorcast.client.blocks_tcp import Allocate, BlockPeer, BlockPeers, Fetched
from tensorcast.schema.block_wire import FRAME_KEYS, Op
from tensorcast.schema.errors import InvalidArgument, TensorCastError

ASKED_MAX: Final = 64
"""So many nodes are asked at the same time."""
PATIENCE_S_MIN: Final = 0.5
"""So long a node may be silent after others were."""


class _Fetched(NamedTuple):
    """The indexes of blocks that arrived from a node, where else it knows others, and how it
    failed."""

    arrived: set[int]
    more: dict[int, tuple[str, ...]]
    failed: TensorCastError | None


class BlockFetcher:
    """For one get: nobody is asked twice for a block, and the patience with silent nodes is shared
    by all its fetches. `is_alone`: there is no mover here that says who has what, so the nodes are
    asked for it, and one that fails is an error."""

    def __init__(self, peers: BlockPeers, *, is_alone: bool) -> None:
        self._peers = peers
        self._is_alone = is_alone
        self._asked: set[tuple[int, str]] = set()
        self._patience_s = peers.stall_s

    def ask_first(
        self, address: str, keys: list[bytes], allocate: Allocate, target: object
    ) -> set[int]:
        """What one node has of at most FRAME_KEYS blocks, before anybody has said who has them; the
        indexes of those that arrived. `target`: where a single one goes, if it is memory in one
        piece. A node that fails has nothing. Raises InvalidArgument."""

        def work(peer: BlockPeer) -> Fetched:
            if len(keys) == 1 and isinstance(target, memoryview):
                return peer.fetch_into(keys[0], allocate, target)
            return peer.fetch(keys, allocate)

        began_s = time.monotonic()
        try:
            found, damaged, _ = self._peers.use(address, work)
        except InvalidArgument:
            raise
        except TensorCastError:
            self._lose_patience(began_s)
            found, damaged = [], []
        if damaged:
            self._tell_damaged(address, [keys[n] for n in damaged])
        if len(found) < len(keys):
            self._asked.update([(n, address) for n in range(len(keys))])
        return set(found)

    def fetch(
        self,
        keys: list[bytes],
        missing: dict[int, tuple[str, ...]],
        allocate: Allocate,
        *,
        may_rest: bool,
    ) -> set[int]:
        """Fetches blocks from the nodes that may have them, from all at once; the indexes of those
        that arrived. A node that fails or lacks some is followed by the next one that is named for
        a block, which may be silent for what is left of the patience."""
        arrived: set[int] = set()
        open_ = {at: names for at, names in missing.items() if any(names)}
        failed: TensorCastError | None = None
        while groups := self._choose(open_, may_rest=may_rest):
            began_s = time.monotonic()
            for one in self._ask_all(groups, keys, allocate):
                arrived |= one.arrived
                for at, names in one.more.items():
                    open_[at] = (*open_[at], *names)
                failed = one.failed or failed
            if failed is not None:
                self._lose_patience(began_s)
            open_ = {at: names for at, names in open_.items() if at not in arrived}
        if failed is not None and not arrived and self._is_alone:
            raise failed
        return arrived

    def _lose_patience(self, began_s: float) -> None:
        left_s = self._patience_s - (time.monotonic() - began_s)
        self._patience_s = min(self._patience_s, max(min(PATIENCE_S_MIN, self._patience_s), left_s))

    def _choose(
        self, wanted: dict[int, tuple[str, ...]], *, may_rest: bool
    ) -> dict[str, list[int]]:
        """Whom to ask for which blocks next, which counts as asked. With `may_rest` a node that
        failed a short time ago is not asked."""
        groups: dict[str, list[int]] = {}
        asked = self._asked
        for at, names in wanted.items():
            for name in names:
                if (at, name) in asked or (may_rest and self._peers.is_resting(name)):
                    continue
                groups.setdefault(name, []).append(at)
                asked.add((at, name))
                break
        return groups

    def _ask_all(
        self, groups: dict[str, list[int]], keys: list[bytes], allocate: Allocate
    ) -> list[_Fetched]:
        """Asks all nodes at the same time."""

        def work(name: str) -> _Fetched:
            return self._fetch_from(name, keys, groups[name], allocate)

        if len(groups) == 1:
            return [work(name) for name in groups]
        with ThreadPoolExecutor(min(len(groups), ASKED_MAX), "tensorcast-kv") as pool:
            return list(pool.map(work, groups))

    def _fetch_from(
        self,
        address: str,
        keys: list[bytes],
        indexes: list[int],
        allocate: Allocate,
    ) -> _Fetched:
        """What a node has, until it fails. Raises InvalidArgument."""
        found = _Fetched(set(), {}, None)
        for start in range(0, len(indexes), FRAME_KEYS):
            part = indexes[start : start + FRAME_KEYS]
            try:
                self._fetch_part(address, keys, part, allocate, found)
            except InvalidArgument:
                raise
            except TensorCastError as error:
                return found._replace(failed=error)
        return found

    def _fetch_part(
        self,
        address: str,
        keys: list[bytes],
        indexes: list[int],
        allocate: Allocate,
        found: _Fetched,
    ) -> None:
        def work(peer: BlockPeer) -> Fetched:
            return peer.fetch(
                [keys[at] for at in indexes],
                lambda n, size: allocate(indexes[n], size),
                elsewhere=self._is_alone,
            )

        arrived, damaged, others = self._peers.use(address, work, self._patience_s)
        found.arrived.update(indexes[n] for n in arrived)
        if damaged:
            self._tell_damaged(address, [keys[indexes[n]] for n in damaged])
        for first, other in others:
            if other is not None:
                for n in range(len(other.choices[0])):
                    found.more[indexes[first + n]] = other.of(n)

    def _tell_damaged(self, address: str, keys: list[bytes]) -> None:
        """Has the holder look at blocks that came damaged: on the way, or are they so there?"""
        with suppress(TensorCastError):
            self._peers.use(address, lambda peer: peer.ask_states(Op.DAMAGED, keys))
