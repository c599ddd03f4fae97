"""The RDMA transport: pulls from the `RdmaServer`s of the same cluster."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tensorcast.movers.core.fabric import pair_rail
from tensorcast.movers.transports.base import (
    Capabilities,
    DeviceMemory,
    Door,
    MemoryKind,
    Provider,
    Share,
    SignTicket,
    signer_for,
)
from tensorcast.movers.transports.rdma.channel import Dialer, Opened, RdmaChannel
from tensorcast.movers.transports.rdma.device import Device, open_devices
from tensorcast.movers.transports.rdma.region import RdmaRegion, Regions
from tensorcast.movers.transports.rdma.server import RdmaServer
from tensorcast.schema.errors import PermissionDenied, TensorCastError, Unavailable
from tensorcast.schema.ids import ArtifactId, NodeId
from tensorcast.schema.rdma import RdmaSettings
from tensorcast.storage.nics import Place, read_nics

DIALS_MAX: Final = 16
CONNECT_S: Final = 3.0

Rails = list[tuple[Opened, Device, int]]


class RdmaTransport:
    """Owns devices and registrations until `aclose`. Satisfies `base.Transport`, and is told of
    segments as a `SegmentWatcher`."""

    name = "rdma"
    capabilities = Capabilities(
        sources=frozenset({MemoryKind.DRAM, MemoryKind.VRAM}),
        targets=frozenset({MemoryKind.DRAM, MemoryKind.VRAM}),
        crosses_nodes=True,
        pulls_in_flight_max=16,
    )

    def __init__(
        self,
        cluster: str,
        node: NodeId,
        devices: Sequence[Device],
        settings: RdmaSettings = RdmaSettings(),  # noqa: B008  (a frozen value)
        *,
        verify: bool = True,
        sign: SignTicket | None = None,
        places: Sequence[Place] = (),
    ) -> None:
        self._places = tuple(places)
        self._sign = sign
        self._cluster = cluster
        self._node = node
        self._settings = settings
        self._verify = verify
        self.devices = tuple(devices)
        self.regions = Regions()
        self._channels: list[RdmaChannel] = []
        self._dialing = ThreadPoolExecutor(DIALS_MAX, thread_name_prefix="rdma-dial")

    def server(self, provider: Provider, door: Door | None = None) -> RdmaServer:
        """What serves the node's own replicas through the same devices; without a `door` nobody
        needs a ticket."""
        return RdmaServer(
            lambda: self.devices, self.regions, provider, self._cluster, self._node, door
        )

    def look(self) -> bool:
        """Opens the adapters that have come up since the last look, and are worth using; whether
        there were any. What goes on is not disturbed: new channels use them. Blocks."""
        known = {(device.name, device.port.number) for device in self.devices}
        try:
            found = open_devices(read_nics(), self._settings, known, self._places)
        except Unavailable:
            return False
        self.devices = (*self.devices, *found)
        return bool(found)

    def register(
        self,
        memory: memoryview,
        kind: MemoryKind = MemoryKind.DRAM,
        *,
        share: Share | None = None,
    ) -> RdmaRegion:
        """Memory that pulls may fill; the adapters hear of it with the first pull."""
        return RdmaRegion(self.regions, memory, share)

    def register_device(self, memory: DeviceMemory, *, share: Share | None = None) -> RdmaRegion:
        """As `register`, of a GPU's memory. Raises Unavailable when an adapter does not reach
        it."""
        region = RdmaRegion(self.regions, memory, share)
        try:
            for device in self.devices:
                region.register(device)
        except BaseException:
            region.close()
            raise
        return region

    async def connect(
        self, peer: NodeId, address: str, artifact: ArtifactId | None = None
    ) -> RdmaChannel:
        """A channel to the mover of `peer`, whose data port is at `address`. Raises Unavailable, or
        PermissionDenied when the peer belongs to another cluster, is another node or takes no
        ticket of ours."""
        dialer = Dialer(
            self._cluster,
            self._node,
            peer,
            address,
            connect_s=CONNECT_S,
            sign=signer_for(self._sign, peer, artifact),
        )
        loop = asyncio.get_running_loop()
        opening = loop.run_in_executor(self._dialing, self._open, dialer)
        try:
            rails = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_opened)
            raise
        with contextlib.ExitStack() as opened:
            for one, _, _ in rails:
                opened.callback(one.close)
            channel = RdmaChannel(
                dialer, rails, verify=self._verify, rebuilds_max=self._settings.rebuilds_max
            )
            opened.pop_all()
        self._channels = [c for c in self._channels if not c.is_closed]
        self._channels.append(channel)
        return channel

    def _open(self, dialer: Dialer) -> Rails:
        """The rails of a channel, or as many as there can be, at least one: of several adapters,
        at either end, some may be dead."""
        devices, queue_pairs = self.devices, self._settings.queue_pairs
        if not devices:
            raise Unavailable(f"Node {self._node} has no RDMA device.")
        rails: Rails = []
        failure: TensorCastError | None = None
        with contextlib.ExitStack() as opened:
            for number in itertools.count():
                pair = pair_rail(number, len(devices), dialer.devices, queue_pairs)
                if pair is None:
                    break
                device, theirs = devices[pair[0]], pair[1]
                try:
                    rail = dialer.dial(device, theirs)
                except TensorCastError as error:
                    failure = failure or error
                    if not rails and (not dialer.is_reached or isinstance(error, PermissionDenied)):
                        raise
                    continue
                opened.callback(rail.close)
                rails.append((rail, device, theirs))
            if failure is not None and not rails:
                raise failure
            opened.pop_all()
        return rails

    async def aclose(self) -> None:
        """Closes the channels that are still open. Safe to repeat."""
        channels, self._channels = self._channels, []
        for channel in channels:
            await channel.aclose()
        self._dialing.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        """Ends channels that are still open, and gives registrations and devices back: when all
        served rails have ended. Blocks. Safe to repeat."""
        for channel in self._channels:
            channel.close()
        self._channels.clear()
        self.regions.close()
        for device in self.devices:
            device.close()


def open_transport(
    cluster: str,
    node: NodeId,
    settings: RdmaSettings,
    *,
    verify: bool = True,
    sign: SignTicket | None = None,
    places: Sequence[Place] = (),
) -> RdmaTransport:
    """The transport over the adapters of this machine that are nearest to these places of memory.
    Raises Unavailable with the reason when there is none that works."""
    devices = open_devices(read_nics(), settings, places=places)
    return RdmaTransport(cluster, node, devices, settings, verify=verify, sign=sign, places=places)


def _close_opened(opening: asyncio.Future[Rails]) -> None:
    """Whoever wanted the rails has gone."""
    if opening.cancelled() or opening.exception() is not None:
        return
    for opened, _, _ in opening.result():
        opened.close()
