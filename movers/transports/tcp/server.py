"""Serves this node's replicas to the movers of other nodes."""

from __future__ import annotations

from tensorcast.movers.transports.base import Provider
from tensorcast.schema.ids import NodeId


class TcpServer:
    """Listens on `listen` (host:port, port 0: any free one) from construction until `close`.

    Owns an accepting thread and one thread for each connection (at most `connections_max`).
    Raises Unavailable when the address cannot be used.
    """

    def __init__(self, listen: str, provider: Provider, cluster: str, node: NodeId) -> None:
        raise NotImplementedError

    @property
    def address(self) -> str:
        """Where it listens: host:port, [host]:port for IPv6."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends all connections and threads; blocks for a moment. Safe to repeat."""
        raise NotImplementedError
