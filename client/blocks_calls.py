"""Blocks as part of the clients' surface: `put_blocks`, `get_blocks`, `exists`, `evict_blocks`.

The waiting client calls straight from the caller's thread; the awaitable one from a thread of its
own, so that the event loop goes on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, overload

from tensorcast.client.api import ControlPlane
from tensorcast.client.blocks import Blocks, Keys
from tensorcast.client.blocks_frames import SignTicket
from tensorcast.client.context import Context
from tensorcast.client.portal import Portal, documented_as
from tensorcast.schema.api import NodeInfo
from tensorcast.schema.blocks import BlockPut
from tensorcast.schema.errors import NotFound, Unavailable

if TYPE_CHECKING:
    import torch

    from tensorcast.client.blocks_buffers import Block

T = TypeVar("T")

ADDRESS_S: Final = 5.0
"""So long the address of a node is taken as true."""

Views = list[memoryview | None]


class Addresses:
    """Where nodes serve blocks, for a moment."""

    def __init__(self, local: str | None) -> None:
        self._local = local
        self._known: dict[str, tuple[str, float]] = {}

    def find(self, node: str | None) -> tuple[bool, str | None]:
        """Whether it is known, and the address (None: the mover of this machine)."""
        if node == self._local or (node is None and self._local is not None):
            return True, None
        address, until = self._known.get(node or "", ("", 0.0))
        return time.monotonic() < until, address

    def learn(self, node: str | None, nodes: Sequence[NodeInfo]) -> str:
        """The address of a node (None: any that is up). Raises NotFound, Unavailable."""
        up = [one for one in nodes if one.state == "up" and node in (None, one.node)]
        if not up and node is not None:
            raise NotFound(f"No node {node} is up.", hint="`tcctl node ls` shows which are.")
        if not up:
            raise Unavailable("No node is up.", hint="`tcctl node ls` shows how they are.")
        self._known[node or ""] = (up[0].address, time.monotonic() + ADDRESS_S)
        return up[0].address


def make_blocks(
    context: Context,
    actor: str,
    patience_s: float | None = None,
    vouch: SignTicket | None = None,
) -> Blocks:
    """The blocks of a cluster as a context tells; see `Blocks`."""
    node = context.default_node
    path = context.nodes[node].socket if node in context.nodes else None
    return Blocks(path, node, context.cluster, actor, patience_s, vouch)


class _AsyncClient(Protocol):
    api: ControlPlane
    blocks: Blocks
    addresses: Addresses

    async def run(self, work: Callable[[threading.Event], T]) -> T: ...


async def _address(client: _AsyncClient, node: str | None) -> str | None:
    is_known, address = client.addresses.find(node)
    if is_known:
        return address
    return client.addresses.learn(node, await client.api.nodes())


class AsyncBlockCalls:
    """What an awaitable client offers for blocks."""

    async def put_blocks(
        self: _AsyncClient,
        keys: Keys,
        blocks: Sequence[Block] | Block,
        *,
        priority: int = 0,
        node: str | None = None,
    ) -> list[BlockPut]:
        """Stores blocks on this machine's node (or on `node`) unless they are there already, item
        by item: stored, existed, or rejected (no room: everything is in use).

        `keys` are `BlockKey`s, or packed by `pack_keys`, which is quicker for many. `blocks` are
        tensors, arrays or buffers, contiguous, 1 byte to 64 MiB each; or one tensor or array that
        is cut along its first dimension. Bytes are kept as they are; a block has no dtype. Where
        `TENSORCAST_KV_EVICTION` is `priority`, blocks of the lowest `priority` (0 to 15) go first.

        A block that was stored can be read by anybody at once, and may be evicted at any time: it
        is a cache. Raises InvalidArgument, Unavailable, Timeout, and NotFound for an unknown node.
        """
        address = await _address(self, node)
        return await self.run(
            lambda _: self.blocks.put(keys, blocks, priority=priority, address=address)
        )

    @overload
    async def get_blocks(
        self: _AsyncClient,
        keys: Keys,
        *,
        verify: bool = False,
        anywhere: bool = True,
        adopt: bool = False,
        node: str | None = None,
    ) -> Views: ...

    @overload
    async def get_blocks(
        self: _AsyncClient,
        keys: Keys,
        *,
        dtype: torch.dtype,
        shape: Sequence[int] | None = None,
        verify: bool = False,
        anywhere: bool = True,
        adopt: bool = False,
        node: str | None = None,
    ) -> list[torch.Tensor | None]: ...

    @overload
    async def get_blocks(
        self: _AsyncClient,
        keys: Keys,
        *,
        into: Sequence[Block] | Block,
        verify: bool = False,
        anywhere: bool = True,
        adopt: bool = False,
        node: str | None = None,
    ) -> list[bool]: ...

    async def get_blocks(
        self: _AsyncClient,
        keys: Keys,
        *,
        into: Sequence[Block] | Block | None = None,
        dtype: torch.dtype | None = None,
        shape: Sequence[int] | None = None,
        verify: bool = False,
        anywhere: bool = True,
        adopt: bool = False,
        node: str | None = None,
    ) -> Views | list[torch.Tensor | None] | list[bool]:
        """The blocks of these keys, item by item, from this machine's node, its disk, and (with
        `anywhere`) from the other nodes that have them, or from `node` alone.

        Without `into`: read-only views in the node's memory, nothing is copied; None for a block
        that is nowhere. Such a block is not overwritten before the last view of the call is gone,
        whatever happens to it and to this client. A forked child inherits no views: the kernel
        stops it when it reads one (copy before the fork, or get them in the child). With `dtype`
        (and `shape`) they are tensors, which must not be written to: the kernel stops a process
        that does.

        With `into` (tensors, arrays or buffers of the blocks' sizes, or one for all) they are
        copied there; the answer says which were found. What others are left with is not defined.

        Blocks of other nodes are checked against their digests as they come, those of this node
        with `verify`; damaged ones are dropped and count as not found. With `adopt` those of other
        nodes are put on this one too. A node that does not answer is left alone for a while, and
        costs what it lacks, not the others.

        Raises InvalidArgument (for a target of another size, too), Unavailable, Timeout.
        """
        address = await _address(self, node)
        return await self.run(
            lambda _: _get(self.blocks, keys, into, dtype, shape, verify, anywhere, adopt, address)
        )

    async def exists(
        self: _AsyncClient, keys: Keys, *, anywhere: bool = True, node: str | None = None
    ) -> list[bool]:
        """Which of these blocks this machine's node has, in memory or on disk, or (with `anywhere`)
        knows another node to have; or which `node` has. Raises Unavailable, Timeout."""
        address = await _address(self, node)
        return await self.run(
            lambda _: self.blocks.exists(keys, anywhere=anywhere, address=address)
        )

    async def evict_blocks(
        self: _AsyncClient,
        keys: Keys | None = None,
        *,
        space: str | None = None,
        node: str | None = None,
    ) -> int:
        """Drops blocks of this machine's node (or of `node`), in memory and on disk: these, all of
        a space, or (with both) these and all of the space; returns how many it had. Who reads one
        may go on. Raises InvalidArgument when neither is given, Unavailable, Timeout.
        """
        address = await _address(self, node)
        return await self.run(lambda _: self.blocks.evict(keys, space=space, address=address))


def _get(
    blocks: Blocks,
    keys: Keys,
    into: Sequence[Block] | Block | None,
    dtype: torch.dtype | None,
    shape: Sequence[int] | None,
    verify: bool,
    anywhere: bool,
    adopt: bool,
    address: str | None,
) -> Views | list[torch.Tensor | None] | list[bool]:
    if into is not None:
        return blocks.get_into(
            keys, into, verify=verify, anywhere=anywhere, adopt=adopt, address=address
        )
    return blocks.get(
        keys,
        dtype=dtype,
        shape=shape,
        verify=verify,
        anywhere=anywhere,
        adopt=adopt,
        address=address,
    )


class _Client(Protocol):
    _portal: Portal

    @property
    def _inner(self) -> _AsyncClient: ...


def _find(client: _Client, node: str | None) -> str | None:
    is_known, address = client._inner.addresses.find(node)
    return address if is_known else client._portal.run(_address(client._inner, node))


class BlockCalls:
    """What a waiting client offers for blocks."""

    @documented_as(AsyncBlockCalls.put_blocks)
    def put_blocks(
        self: _Client,
        keys: Keys,
        blocks: Sequence[Block] | Block,
        *,
        priority: int = 0,
        node: str | None = None,
    ) -> list[BlockPut]:
        """As `AsyncClient.put_blocks`."""
        address = _find(self, node)
        return self._inner.blocks.put(keys, blocks, priority=priority, address=address)

    @overload
    def get_blocks(
        self: _Client,
        keys: Keys,
        *,
        verify: bool = False,
        anywhere: bool = True,
        adopt: bool = False,
        node: str | None = None,
    ) -> Views: ...

    @overload
    def get_blocks(
        self: _Client,
        keys: Keys,
        *,
        dtype: torch.dtype,
        shape: Sequence[int] | None = None,
        verify: bool = False,
        anywhere: bool = True,
        adopt: bool = False,
        node: str | None = None,
    ) -> list[torch.Tensor | None]: ...

    @overload
    def get_blocks(
        self: _Client,
        keys: Keys,
        *,
        into: Sequence[Block] | Block,
        verify: bool = False,
        anywhere: bool = True,
        adopt: bool = False,
        node: str | None = None,
    ) -> list[bool]: ...

    @documented_as(AsyncBlockCalls.get_blocks)
    def get_blocks(
        self: _Client,
        keys: Keys,
        *,
        into: Sequence[Block] | Block | None = None,
        dtype: torch.dtype | None = None,
        shape: Sequence[int] | None = None,
        verify: bool = False,
        anywhere: bool = True,
        adopt: bool = False,
        node: str | None = None,
    ) -> Views | list[torch.Tensor | None] | list[bool]:
        """As `AsyncClient.get_blocks`."""
        address = _find(self, node)
        blocks = self._inner.blocks
        return _get(blocks, keys, into, dtype, shape, verify, anywhere, adopt, address)

    @documented_as(AsyncBlockCalls.exists)
    def exists(
        self: _Client, keys: Keys, *, anywhere: bool = True, node: str | None = None
    ) -> list[bool]:
        """As `AsyncClient.exists`."""
        address = _find(self, node)
        return self._inner.blocks.exists(keys, anywhere=anywhere, address=address)

    @documented_as(AsyncBlockCalls.evict_blocks)
    def evict_blocks(
        self: _Client,
        keys: Keys | None = None,
        *,
        space: str | None = None,
        node: str | None = None,
    ) -> int:
        """As `AsyncClient.evict_blocks`."""
        return self._inner.blocks.evict(keys, space=space, address=_find(self, node))
