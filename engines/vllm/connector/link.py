"""The way to the blocks of this node, for an engine that must go on without it.

Whoever fails or is slow is left alone for a moment, longer each time, and then asked again: so an
engine pays for a mover that is away once in a while, not with each request. For any number of
threads.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from tensorcast.client.blocks import Blocks
from tensorcast.client.blocks_pieces import Pieces
from tensorcast.engines.vllm.connector.addresses import Addresses
from tensorcast.schema.block_wire import State
from tensorcast.schema.blocks import BlockPut
from tensorcast.schema.errors import Cancelled, TensorCastError

LOGGER = logging.getLogger("vllm.tensorcast")

PATIENCE_S: Final = 0.6
"""How long a mover or another node may be silent."""
REST_S: Final = 0.25
REST_S_MAX: Final = 2.0

T = TypeVar("T")


class Link:
    """`connect` makes the client; it may raise TensorCastError, now or later. `addresses`:
    where other nodes serve blocks."""

    def __init__(self, connect: Callable[[], Blocks], addresses: Addresses | None = None) -> None:
        self._connect = connect
        self._addresses = addresses
        self._lock = threading.Lock()
        self._blocks: Blocks | None = None
        self._resting_until_s = 0.0
        self._rest_s = REST_S
        self._is_told = False
        self._is_closed = False

    @property
    def is_resting(self) -> bool:
        """Whether the node failed a moment ago: nothing is asked of it now."""
        return time.monotonic() < self._resting_until_s

    def find_states(self, keys: list[bytes], node: str | None = None) -> bytes | None:
        """Where blocks are (`Blocks.find_states`); None when this node does not answer. `node` is
        asked itself for what nobody is known to have."""
        found = self._try(lambda blocks: blocks.find_states(keys))
        if found is None or node is None:
            return found
        absent = [n for n, state in enumerate(found) if state == State.ABSENT]
        there = self._ask_node(
            node,
            lambda blocks, address: blocks.find_states([keys[n] for n in absent], address=address),
        )
        states = bytearray(found)
        for n, state in zip(absent, there or b"", strict=False):
            states[n] = State.ABSENT if state == State.ABSENT else State.ELSEWHERE
        return bytes(states)

    def get_into(
        self, keys: list[bytes], targets: Sequence[Pieces], node: str | None = None
    ) -> list[bool]:
        """Which blocks were found, on this node or another, and copied; none when this node does
        not answer. `node` is asked itself for what nobody is known to have. When it returns
        nothing is written any more."""
        found = self._try(lambda blocks: blocks.get_into(keys, list(targets)))
        if found is None:
            return [False] * len(keys)
        absent = [n for n, is_there in enumerate(found) if not is_there]
        if absent and node is not None:
            there = self._ask_node(
                node,
                lambda blocks, address: blocks.get_into(
                    [keys[n] for n in absent], [targets[n] for n in absent], address=address
                ),
            )
            for n, is_there in zip(absent, there or [], strict=False):
                found[n] = is_there
        return found

    def put(self, keys: list[bytes], sources: Sequence[Pieces]) -> list[BlockPut] | None:
        """What came of putting blocks; None when the node does not answer. When it returns nothing
        is read any more. Raises Cancelled, when a source does."""
        return self._try(lambda blocks: blocks.put(keys, list(sources)))

    def close(self) -> None:
        """Safe to repeat."""
        self._is_closed = True
        if self._blocks is not None:
            self._blocks.close()

    def _ask_node(self, node: str, work: Callable[[Blocks, str], T]) -> T | None:
        """What another node answers; None when it does not, when it is not known where it is, or
        when it was silent a moment ago: a request waits for that once."""
        address = self._addresses.find(node) if self._addresses is not None else None
        if address is None or self._blocks is None or self._blocks.peers.is_resting(address):
            return None
        try:
            return work(self._blocks, address)
        except TensorCastError:
            if self._addresses is not None:
                self._addresses.forget()
            return None

    def _try(self, work: Callable[[Blocks], T]) -> T | None:
        if self.is_resting or self._is_closed:
            return None
        try:
            found = work(self._client())
        except Cancelled:
            raise
        except TensorCastError as error:
            self._rest(error)
            return None
        if self._is_told:
            self._is_told = False
            LOGGER.info("TensorCast: the node answers again; KV blocks are shared as before.")
        self._rest_s = REST_S
        return found

    def _client(self) -> Blocks:
        with self._lock:
            if self._blocks is None:
                self._blocks = self._connect()
            return self._blocks

    def _rest(self, error: TensorCastError) -> None:
        with self._lock:
            if not self._is_told and not self._is_closed:
                LOGGER.warning("TensorCast: KV blocks are computed, not shared, for now: %s", error)
            self._is_told = True
            self._resting_until_s = time.monotonic() + self._rest_s
            self._rest_s = min(REST_S_MAX, 2 * self._rest_s)
