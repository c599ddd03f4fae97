"""The TCP transport: channels of several connections, served by threads."""

from __future__ import annotations

from tensorcast.movers.transports.base import (
    Capabilities,
    Channel,
    MemoryKind,
    MemoryRegion,
    Region,
)
from tensorcast.schema.ids import NodeId


class TcpTransport:
    """Pulls from `TcpServer`s of the same cluster."""

    name = "tcp"
    capabilities = Capabilities(
        sources=frozenset({MemoryKind.DRAM, MemoryKind.FILE}),
        targets=frozenset({MemoryKind.DRAM}),
        crosses_nodes=True,
        pulls_in_flight_max=4,
    )

    def __init__(self, cluster: str, node: NodeId) -> None:
        self._cluster = cluster
        self._node = node

    def register(self, memory: memoryview, kind: MemoryKind = MemoryKind.DRAM) -> Region:
        return MemoryRegion(memory)

    async def connect(self, peer: NodeId, address: str) -> Channel:
        raise NotImplementedError

    async def aclose(self) -> None:
        raise NotImplementedError
