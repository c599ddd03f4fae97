"""KV blocks for applications: put if absent, get (views or copies), from this node and others.

Waits in the calling thread, without an event loop between: a call takes microseconds. Any number of
threads may call; each uses a connection of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

import xxhash

from tensorcast.client.blocks_buffers import flat_views, shape_views, write_staged
from tensorcast.client.blocks_fetch import BlockFetcher
from tensorcast.client.blocks_frames import SignTicket
from tensorcast.client.blocks_guess import BlockGuesses
from tensorcast.client.blocks_memory import EVERYTHING, WITHOUT_GIL_BYTES, copy_block
from tensorcast.client.blocks_pieces import Pieces, Place, make_digest
from tensorcast.client.blocks_pool import BlockConnections
from tensorcast.client.blocks_socket import BlockConnection, Found
from tensorcast.client.blocks_tcp import Allocate, BlockPeers
from tensorcast.schema.block_wire import (
    FRAME_KEYS,
    KEYS_MAX,
    PRIORITY_MAX,
    Elsewhere,
    Greeting,
    Op,
    State,
)
from tensorcast.schema.blocks import BlockKey, BlockPut, is_packed, pack_key, pack_space
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.ids import NodeId
from tensorcast.schema.tickets import Challenge

if TYPE_CHECKING:
    import torch

    from tensorcast.client.blocks_buffers import Block

T = TypeVar("T")
Keys = Sequence[BlockKey] | Sequence[bytes]

Missing = dict[int, tuple[str, ...]]
"""The indexes of blocks that are not here, with the addresses of who may have each, best first."""

PUT_BYTES: Final = 16 << 20
PUT_BLOCKS: Final = 512
AGAIN_BYTES: Final = 4 << 20
"""After a copy of so much, what was not there is asked for again: memory for blocks that come back
from the disk is free only now."""

_PACKED: Final = {bytes}
_PUTS: Final = {State.WANTED: BlockPut.STORED, State.EXISTED: BlockPut.EXISTED}


class Blocks:
    """The blocks of a cluster, seen from one node (`path`: its mover's socket; None: from none,
    then every call must name an `address`). `patience_s`: how long a mover or a node may be silent
    or away, where the usual limits are too long. `vouch` signs tickets where no mover does."""

    def __init__(
        self,
        path: str | None,
        node: str | None,
        cluster: str,
        actor: str,
        patience_s: float | None = None,
        vouch: SignTicket | None = None,
    ) -> None:
        self._greeting = Greeting(cluster=cluster, actor=actor)
        self._patience_s = patience_s
        self._here = BlockConnections(path, node, self._greeting, patience_s)
        self._sign = self._sign_ticket if path is not None else vouch
        self.peers = BlockPeers(self._greeting, patience_s, self._sign)
        self._guesses = BlockGuesses()

    # ---- puts ----------------------------------------------------------------------------------

    def put(
        self,
        keys: Keys,
        blocks: Sequence[Block] | Block,
        *,
        priority: int = 0,
        address: str | None = None,
    ) -> list[BlockPut]:
        """See `AsyncClient.put_blocks`."""
        if not isinstance(priority, int) or not 0 <= priority <= PRIORITY_MAX:
            raise InvalidArgument(f"priority is {priority!r}.", hint=f"Use 0 to {PRIORITY_MAX}.")
        packed = pack(keys)
        sources, kept = flat_views(blocks, len(packed), write=False)
        if not packed:
            return []
        states = self._put(packed, sources, priority, address)
        del kept
        if not any(states):
            return [BlockPut.STORED] * len(packed)
        return [_PUTS.get(State(state), BlockPut.REJECTED) for state in states]

    def _put(
        self, keys: list[bytes], sources: list[Place], priority: int, address: str | None
    ) -> bytes:
        if address is not None:
            return b"".join(
                self._send(address, keys[a:b], sources[a:b], priority) for a, b in cut(sources)
            )

        parts: Sequence[tuple[int, int]] = ((0, len(sources)),)
        if len(sources) > PUT_BLOCKS or len(sources) * sources[0].nbytes > PUT_BYTES:
            parts = cut(sources)

        def work(connection: BlockConnection) -> bytes:
            states = connection.put(keys, sources, priority, parts)
            connection.flush()
            return states

        return self._here.use(work)

    def _send(self, address: str, keys: list[bytes], sources: list[Place], priority: int) -> bytes:
        return self.peers.use(address, lambda peer: peer.send_blocks(keys, sources, priority))

    # ---- gets ----------------------------------------------------------------------------------

    def get(
        self,
        keys: Keys,
        *,
        dtype: torch.dtype | None = None,
        shape: Sequence[int] | None = None,
        verify: bool = False,
        anywhere: bool = True,
        adopt: bool = False,
        address: str | None = None,
    ) -> list[memoryview | None] | list[torch.Tensor | None]:
        """See `AsyncClient.get_blocks`."""
        packed = pack(keys)
        views: list[memoryview | None] = [None] * len(packed)

        def look(wanted: Sequence[int]) -> Missing:
            return self._view_here(packed, views, wanted, verify, anywhere)

        def allocate(at: int, size: int) -> memoryview:
            views[at] = memoryview(bytearray(size))
            return views[at]  # type: ignore[return-value]  # just set

        absent, arrived = self._gather(packed, look, allocate, anywhere, address)
        if absent or arrived:
            for at in absent:
                views[at] = None
            self._adopt(packed, views, arrived if adopt else set())
            views = [None if view is None else view.toreadonly() for view in views]
        if dtype is None and shape is None:
            return views
        return shape_views(views, *_form(dtype, shape))

    def _gather(
        self,
        keys: list[bytes],
        look: Callable[[Sequence[int]], Missing],
        allocate: Allocate,
        anywhere: bool,
        address: str | None,
        target: Place | None = None,
    ) -> tuple[set[int], set[int]]:
        """Blocks from here, where `look` finds those of some indexes and tells who may have the
        others, and from elsewhere: which are nowhere, and which came from elsewhere. `target`: that
        of the first one, if it is known."""
        wanted: Sequence[int] = range(len(keys))
        arrived: set[int] = set()
        fetcher = None
        if address is None:
            guess = self._guesses.address(keys) if anywhere else None
            if guess is not None and self._may_guess(keys, guess):
                fetcher = BlockFetcher(self.peers, is_alone=False)
                arrived = fetcher.ask_first(guess, keys, allocate, target)
                wanted = [at for at in wanted if at not in arrived]
                self._guesses.judge(keys, is_right=not wanted)
            missing = look(wanted) if wanted else {}
        else:
            missing = dict.fromkeys(wanted, (address,))
        if missing:
            fetcher = fetcher or BlockFetcher(self.peers, is_alone=not self._here.is_local)
            late = fetcher.fetch(keys, missing, allocate, may_rest=address is None)
            if address is None:
                self._guesses.learn(keys, missing, late)
            arrived |= late
        return missing.keys() - arrived, arrived

    def _may_guess(self, keys: list[bytes], address: str) -> bool:
        """Whether a node that probably has these blocks may be asked before the mover here: this
        one shows none of them, and that one has not just failed."""
        if self.peers.is_resting(address):
            return False
        return self._here.use(lambda here: here.shows_none(keys), is_viewing=True)

    def _view_here(
        self,
        keys: list[bytes],
        views: list[memoryview | None],
        wanted: Sequence[int],
        verify: bool,
        anywhere: bool,
    ) -> Missing:
        """Fills `views` with what this node has; the others, and who may have them."""

        def work(connection: BlockConnection) -> Missing:
            missing: Missing = {}
            for first in range(0, len(wanted), FRAME_KEYS):
                numbers = wanted[first : first + FRAME_KEYS]
                is_all = len(numbers) == len(keys)
                part = keys if is_all else [keys[at] for at in numbers]
                found = connection.find(part, shortly=False, digests=verify, elsewhere=anywhere)
                if is_all:
                    views[:] = connection.views(found)
                else:
                    for at, view in zip(numbers, connection.views(found), strict=True):
                        views[at] = view
                if not verify and 0 not in found.addresses:
                    continue
                absent = [n for n, address in enumerate(found.addresses) if not address]
                if verify:
                    damaged = find_damaged(found)
                    _tell_here(connection, [part[n] for n in damaged])
                    for n in damaged:
                        views[numbers[n]] = None
                    absent += damaged
                missing.update(_others(numbers, absent, found.elsewhere))
            return missing

        return self._here.use(work, is_viewing=True)

    def get_into(
        self,
        keys: Keys,
        targets: Sequence[Block] | Block,
        *,
        verify: bool = False,
        anywhere: bool = True,
        adopt: bool = False,
        address: str | None = None,
    ) -> list[bool]:
        """See `AsyncClient.get_blocks` (`into`)."""
        packed = pack(keys)
        views, kept = flat_views(targets, len(packed), write=True)

        def look(wanted: Sequence[int]) -> Missing:
            return self._copy_here(packed, views, wanted, verify, anywhere)

        def allocate(at: int, size: int) -> Place:
            check_size(at, size, views[at])
            return views[at]

        target = views[0] if views else None
        absent, arrived = self._gather(packed, look, allocate, anywhere, address, target)
        if adopt:
            self._adopt(packed, views, arrived)
        is_there = [True] * len(packed)
        for at in absent:
            is_there[at] = False
        write_staged(kept)
        return is_there

    def _copy_here(
        self,
        keys: list[bytes],
        targets: list[Place],
        wanted: Sequence[int],
        verify: bool,
        anywhere: bool,
    ) -> Missing:
        """Fills `targets` with what this node has; the others, and who may have them."""

        def work(connection: BlockConnection) -> Missing:
            missing: Missing = {}
            for first in range(0, len(wanted), FRAME_KEYS):
                some = wanted[first : first + FRAME_KEYS]
                while some:
                    absent = _copy_part(connection, keys, targets, some, verify, anywhere)
                    left = list(absent)
                    copied = sum(targets[at].nbytes for at in set(some) - absent.keys())
                    some = left if copied >= AGAIN_BYTES else []
                missing.update(absent)
            return missing

        return self._here.use(work)

    def _adopt(self, keys: list[bytes], views: Sequence[Place | None], arrived: set[int]) -> None:
        """Puts what was fetched on this node too."""
        found = [(keys[at], view) for at in sorted(arrived) if (view := views[at]) is not None]
        if found and self._here.is_local:
            self._put([key for key, _ in found], [view for _, view in found], 0, None)

    # ---- the rest ------------------------------------------------------------------------------

    def exists(
        self, keys: Keys, *, anywhere: bool = True, address: str | None = None
    ) -> list[bool]:
        """See `AsyncClient.exists`."""
        states = self.find_states(keys, anywhere=anywhere, address=address)
        return [state != State.ABSENT for state in states]

    def find_states(
        self, keys: Keys, *, anywhere: bool = True, address: str | None = None
    ) -> bytes:
        """As `exists`, but where each block is: a byte that is ABSENT, IN_MEMORY, ON_DISK or
        ELSEWHERE of `State`."""
        parts = parts_of(pack(keys))
        return b"".join([self._ask(Op.EXISTS, part, address, elsewhere=anywhere) for part in parts])

    def evict(
        self, keys: Keys | None = None, *, space: str | None = None, address: str | None = None
    ) -> int:
        """See `AsyncClient.evict_blocks`."""
        if keys is None and space is None:
            raise InvalidArgument(
                "It is not said which blocks to evict.", hint="Give keys, or a `space=`, or both."
            )
        total = 0
        for part in parts_of(pack(keys if keys is not None else [])):
            total += self._ask(Op.EVICT, part, address).count(State.DROPPED)
        if space is not None:
            beginning = pack_space(space)
            dropped = KEYS_MAX
            while dropped == KEYS_MAX:
                dropped = self._evict_some(beginning, address)
                total += dropped
        return total

    def _evict_some(self, beginning: bytes, address: str | None) -> int:
        """How many blocks of a space one request dropped: KEYS_MAX when there may be more."""
        if address is not None:
            return self.peers.use(address, lambda peer: peer.evict_space(beginning))
        return self._here.use(lambda here: here.evict_space(beginning))

    def _ask(
        self, op: Op, keys: list[bytes], address: str | None, *, elsewhere: bool = False
    ) -> bytes:
        """A state for each block, of EXISTS or EVICT."""
        if address is not None:
            return self.peers.use(address, lambda peer: peer.ask_states(op, keys))
        return self._here.use(lambda here: here.ask_states(op, keys, elsewhere=elsewhere))

    def count(self) -> bytes:
        """The counts of the local mover's blocks, as JSON; for diagnosis."""
        return self._here.use(lambda connection: connection.count())

    def _sign_ticket(self, source: NodeId, challenge: Challenge) -> bytes:
        """The local mover's ticket for another node's data port."""
        return self._here.use(lambda connection: connection.sign_ticket(source, challenge))

    def close(self) -> None:
        """Gives up the connections. Views that were handed out stay valid. Safe to repeat."""
        self._here.close()
        self.peers.close()

    def forget(self) -> None:
        """In a forked child: leaves the parent's connections to the parent."""
        self._here.forget()
        self.peers = BlockPeers(self._greeting, self._patience_s, self._sign)


def pack(keys: Keys) -> list[bytes]:
    """The binary forms of keys; those that are packed already stay. Raises InvalidArgument."""
    if type(keys) is not list and (  # as a rule it is one: the others take longer to tell
        isinstance(keys, bytes | str | BlockKey) or not isinstance(keys, Iterable)
    ):
        raise InvalidArgument("The keys are no sequence.", hint="Give a list of keys.")
    found: list[BlockKey | bytes] = list(keys)
    if set(map(type, found)) <= _PACKED:
        if not is_packed(found):  # type: ignore[arg-type]  # all are bytes
            raise InvalidArgument(
                "A key has no length that a packed key can have.", hint="Use `pack_keys`."
            )
        return found  # type: ignore[return-value]  # all are bytes
    return [_pack(key) for key in found]


def _pack(key: BlockKey | bytes) -> bytes:
    if isinstance(key, BlockKey):
        return pack_key(key)
    if isinstance(key, bytes) and is_packed([key]):
        return key
    raise InvalidArgument(f"{key!r} is neither a BlockKey nor packed.", hint="Use BlockKey.")


def parts_of(keys: list[bytes]) -> list[list[bytes]]:
    """The keys, so many as one request takes."""
    return [keys[at : at + FRAME_KEYS] for at in range(0, len(keys), FRAME_KEYS)]


def cut(sources: Sequence[Place]) -> list[tuple[int, int]]:
    """Ranges of blocks that are put with one request each."""
    parts: list[tuple[int, int]] = []
    first = size = 0
    for at, source in enumerate(sources):
        if at > first and (size + source.nbytes > PUT_BYTES or at - first >= PUT_BLOCKS):
            parts.append((first, at))
            first, size = at, 0
        size += source.nbytes
    return [*parts, (first, len(sources))]


def copy_found(found: Found, targets: Sequence[Place], numbers: Sequence[int]) -> list[int]:
    """Copies what was found to its targets; the indexes of the others. Raises InvalidArgument for a
    target of another size, and names it by its number."""
    everything = EVERYTHING
    absent: list[int] = []
    for at, (address, size) in enumerate(zip(found.addresses, found.sizes, strict=True)):
        if address:
            target = targets[at]
            if target.nbytes != size:
                check_size(numbers[at], size, target)
            if isinstance(target, Pieces):
                target.copy_from(everything[address : address + size])
            elif size < WITHOUT_GIL_BYTES:
                target[:] = everything[address : address + size]
            else:
                copy_block(target, everything[address : address + size])
        else:
            absent.append(at)
    return absent


def _copy_part(
    connection: BlockConnection,
    keys: list[bytes],
    targets: list[Place],
    wanted: Sequence[int],
    verify: bool,
    anywhere: bool,
) -> Missing:
    """Fills the targets of the blocks at `wanted` that are here; the others, and who may have
    them. While it copies, nothing of it can be overwritten."""
    part = [keys[at] for at in wanted]
    places = [targets[at] for at in wanted]
    found = connection.find(part, shortly=True, digests=verify, elsewhere=anywhere)
    try:
        absent = copy_found(found, places, wanted)
    finally:
        connection.release(found)
    if verify:
        damaged = [
            n
            for n, digest in enumerate(found.digests)
            if found.addresses[n] and make_digest(places[n]) != digest
        ]
        _tell_here(connection, [part[n] for n in damaged])
        absent += damaged
    return _others(wanted, absent, found.elsewhere)


def _tell_here(connection: BlockConnection, damaged: list[bytes]) -> None:
    """Has the mover look at blocks, now: others may read them."""
    if damaged:
        connection.tell_damaged(damaged)
        connection.flush()


def find_damaged(found: Found) -> list[int]:
    """The indexes of blocks that do not match their digests."""
    return [
        at
        for at, (address, size) in enumerate(zip(found.addresses, found.sizes, strict=True))
        if address
        and xxhash.xxh3_64_digest(EVERYTHING[address : address + size]) != found.digests[at]
    ]


def check_size(at: int, size: int, target: Place) -> None:
    """Raises InvalidArgument unless the target has the size of the block."""
    if target.nbytes != size:
        raise InvalidArgument(
            f"Block {at} has {size} bytes, its target {target.nbytes}.",
            hint="Give targets of the size of the blocks.",
        )


def _others(numbers: Sequence[int], absent: Sequence[int], elsewhere: Elsewhere | None) -> Missing:
    if elsewhere is None:
        return dict.fromkeys((numbers[n] for n in absent), ())
    return {numbers[n]: elsewhere.of(n) for n in absent}


def _form(
    dtype: torch.dtype | None, shape: Sequence[int] | None
) -> tuple[torch.dtype, Sequence[int] | None]:
    import torch

    return dtype or torch.uint8, shape
