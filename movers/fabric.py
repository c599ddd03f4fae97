"""The transports of a mover: RDMA where this machine has it, and TCP. Where there is no RDMA it
says why. An adapter that comes up later is taken when it does. And, if it is switched on, shm for
several movers on one machine."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tensorcast.gpu.places import read_places
from tensorcast.movers.memory.pool import NoWatcher, SegmentWatcher
from tensorcast.movers.settings import Settings
from tensorcast.movers.transports.base import Door, Provider, SignTicket, Transport, is_able
from tensorcast.movers.transports.registry import make_transport
from tensorcast.schema.errors import Unavailable

if TYPE_CHECKING:
    from tensorcast.movers.transports.rdma.transport import RdmaTransport
    from tensorcast.movers.transports.shm.server import ShmServer

_logger = logging.getLogger(__name__)


class Fabric:
    """TCP and, unless `why_not` says otherwise in one sentence, RDMA. `transports` by name, the
    best first. Owns them until `close`, after the data port has been closed."""

    def __init__(
        self,
        settings: Settings,
        tcp: Transport,
        rdma: RdmaTransport | None,
        why_not: str = "",
    ) -> None:
        self._settings = settings
        self._rdma = rdma
        self._shm_server: ShmServer | None = None
        self.why_not = why_not
        self.transports: dict[str, Transport] = {tcp.name: tcp}
        if rdma is not None:
            self.transports = {rdma.name: rdma, **self.transports}
        if settings.shm:
            shm = _open_shm(settings)
            self.transports = {shm.name: shm, **self.transports}

    @property
    def names(self) -> tuple[str, ...]:
        """The transports that can be used now."""
        return tuple(name for name, one in self.transports.items() if is_able(one))

    def look(self) -> bool:
        """Takes adapters that have come up; whether RDMA has become possible by that. Blocks."""
        if self._rdma is None:
            return False
        had_some = is_able(self._rdma)
        if self._rdma.look():
            _logger.info("RDMA devices: %s", ", ".join(one.name for one in self._rdma.devices))
        return is_able(self._rdma) and not had_some

    @property
    def watcher(self) -> SegmentWatcher:
        """Is to be told of segments: they are registered with the adapters."""
        return NoWatcher() if self._rdma is None else self._rdma.regions

    def guests(
        self, provider: Provider, door: Door
    ) -> dict[bytes, Callable[[socket.socket], None]]:
        """What serves peers that come to the data port, by the first bytes that they send. Those of
        this machine come by a socket of their own, from now on until `stop_serving`."""
        if self._settings.shm:
            from tensorcast.movers.transports.shm.server import ShmServer

            settings = self._settings
            self._shm_server = ShmServer(provider, settings.cluster, settings.node)
        if self._rdma is None:
            return {}
        from tensorcast.movers.transports.rdma.wire import MAGIC

        return {MAGIC: self._rdma.server(provider, door).serve_peer}

    def stop_serving(self) -> None:
        """Lends nothing more to the movers of this machine. Blocks. Safe to repeat."""
        if self._shm_server is not None:
            self._shm_server.close()

    async def aclose(self) -> None:
        """Closes the channels that are still open. Safe to repeat."""
        for transport in self.transports.values():
            await transport.aclose()

    def close(self) -> None:
        """Gives the adapters back. Safe to repeat."""
        if self._rdma is not None:
            self._rdma.close()


def _open_shm(settings: Settings) -> Transport:
    from tensorcast.movers.transports.shm.channel import ShmTransport
    from tensorcast.movers.transports.shm.wire import name_machine

    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    name = name_machine(boot, os.stat("/proc/self/ns/net").st_ino)
    return ShmTransport(settings.cluster, verify=settings.verify, name=name)


def open_fabric(settings: Settings, sign: SignTicket) -> Fabric:
    """The transports that this machine has, with tickets that `sign` signs. Never raises for what
    it lacks."""
    tcp = make_transport("tcp", settings.cluster, settings.node, verify=settings.verify, sign=sign)
    if not settings.rdma.is_on:
        return Fabric(settings, tcp, None, "RDMA is switched off.")
    try:
        from tensorcast.movers.transports.rdma import transport
    except ImportError as error:
        why_not = f"pyverbs cannot be loaded: {str(error).rstrip('.')}."
        _tell(settings, why_not)
        return Fabric(settings, tcp, None, why_not)
    where, verify = (settings.cluster, settings.node), settings.verify
    has_gpus = settings.gpu_bytes and settings.gpu == "auto"
    places = tuple(read_places().values()) if has_gpus else ()
    try:
        rdma = transport.open_transport(
            *where, settings.rdma, verify=verify, sign=sign, places=places
        )
    except Unavailable as error:
        _tell(settings, error.message)
        rdma = transport.RdmaTransport(
            *where, (), settings.rdma, verify=verify, sign=sign, places=places
        )
        return Fabric(settings, tcp, rdma, error.message)
    return Fabric(settings, tcp, rdma)


def _tell(settings: Settings, why_not: str) -> None:
    """It is worth a warning when somebody named devices."""
    level = logging.WARNING if settings.rdma.devices else logging.INFO
    _logger.log(level, "nodes are reached over TCP: %s", why_not)
