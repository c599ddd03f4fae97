"""The blocks of one node, wired: store, socket, keeper, and what serves them to peers."""

from __future__ import annotations

import socket
from pathlib import Path

from tensorcast.movers.blocks.base import BlockLocator, BlockReporter, BlockSpill
from tensorcast.movers.blocks.desk import SignBlocks
from tensorcast.movers.blocks.exchange import BlockExchange
from tensorcast.movers.blocks.keeper import BlockKeeper
from tensorcast.movers.blocks.server import BlockServer
from tensorcast.movers.blocks.store import BlockStats, BlockStore
from tensorcast.movers.core.block_eviction import BlockPolicy
from tensorcast.movers.memory.pool import Pool
from tensorcast.movers.transports.base import Door
from tensorcast.schema.block_wire import SOCKET_SUFFIX
from tensorcast.schema.ids import NodeId


class NodeBlocks:
    """Works from construction; the socket is there from `open` until `close`."""

    def __init__(
        self,
        pool: Pool,
        capacity_bytes: int,
        policy: BlockPolicy,
        cluster: str,
        node: NodeId,
        *,
        reporter: BlockReporter,
        locator: BlockLocator,
        spill: BlockSpill,
        door: Door | None = None,
        sign: SignBlocks | None = None,
    ) -> None:
        self._sign = sign
        self._cluster = cluster
        self._node = node
        self._locator = locator
        self._store = BlockStore(pool, capacity_bytes, policy, reporter, spill)
        self._exchange = BlockExchange(self._store, locator, cluster, node, door)
        self._keeper = BlockKeeper(self._store, spill)
        self._server: BlockServer | None = None

    def open(self, mover_socket: Path) -> None:
        """Listens beside the mover's own socket. Raises PermissionDenied."""
        path = mover_socket.with_name(mover_socket.name + SOCKET_SUFFIX)
        self._server = BlockServer(
            path, self._store, self._locator, self._cluster, self._node, self._sign
        )

    def serve_peer(self, connected: socket.socket) -> None:
        """Serves a connection to the data port that opened with the magic of blocks."""
        self._exchange.serve(connected)

    def stats(self) -> BlockStats:
        """Counts, for diagnosis and for tests of leaks."""
        return self._store.stats()

    def close(self) -> None:
        """Ends its threads; blocks for a moment. Safe to repeat."""
        if self._server is not None:
            self._server.close()
        self._keeper.close()
        self._store.close()
