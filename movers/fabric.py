"""The transports of a mover: RDMA where this machine has it, and TCP. Where there is no RDMA it
says why."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from tensorcast.movers.memory.pool import NoWatcher, SegmentWatcher
from tensorcast.movers.settings import Settings
from tensorcast.movers.transports.base import Door, Provider, SignTicket, Transport
from tensorcast.movers.transports.registry import make_transport
from tensorcast.schema.errors import Unavailable

if TYPE_CHECKING:
    from tensorcast.movers.transports.rdma.transport import RdmaTransport

_logger = logging.getLogger(__name__)


class Fabric:
    """TCP and, unless `why_not` says otherwise in one sentence, RDMA. `transports` by name, the
    best first. Owns them until `close`, after the data port has been closed."""

    def __init__(self, tcp: Transport, rdma: RdmaTransport | None, why_not: str = "") -> None:
        self._rdma = rdma
        self.why_not = why_not
        self.transports: dict[str, Transport] = {tcp.name: tcp}
        if rdma is not None:
            self.transports = {rdma.name: rdma, **self.transports}

    @property
    def watcher(self) -> SegmentWatcher:
        """Is to be told of segments: they are registered with the adapters."""
        return NoWatcher() if self._rdma is None else self._rdma.regions

    def guests(
        self, provider: Provider, door: Door
    ) -> dict[bytes, Callable[[socket.socket], None]]:
        """What serves peers that come to the data port, by the first bytes that they send."""
        if self._rdma is None:
            return {}
        from tensorcast.movers.transports.rdma.wire import MAGIC

        return {MAGIC: self._rdma.server(provider, door).serve_peer}

    async def aclose(self) -> None:
        """Closes the channels that are still open. Safe to repeat."""
        for transport in self.transports.values():
            await transport.aclose()

    def close(self) -> None:
        """Gives the adapters back. Safe to repeat."""
        if self._rdma is not None:
            self._rdma.close()


def open_fabric(settings: Settings, sign: SignTicket) -> Fabric:
    """The transports that this machine has, with tickets that `sign` signs. Never raises for what
    it lacks."""
    tcp = make_transport("tcp", settings.cluster, settings.node, verify=settings.verify, sign=sign)
    if not settings.rdma.is_on:
        return Fabric(tcp, None, "RDMA is switched off.")
    try:
        from tensorcast.movers.transports.rdma.transport import open_transport

        rdma = open_transport(
            settings.cluster, settings.node, settings.rdma, verify=settings.verify, sign=sign
        )
    except ImportError as error:
        why_not = f"pyverbs cannot be loaded: {error}."
    except Unavailable as error:
        why_not = error.message
    else:
        return Fabric(tcp, rdma)
    # It is worth a warning when somebody named devices.
    level = logging.WARNING if settings.rdma.devices else logging.INFO
    _logger.log(level, "nodes are reached over TCP: %s", why_not)
    return Fabric(tcp, None, why_not)
