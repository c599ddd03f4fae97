"""The way between the two ends of a rail: which of their addresses they use. Pure.

On Ethernet (RoCE) a queue pair is addressed by GID, and both ends must use one of the same kind:
RoCE v2 over IPv4, over IPv6, within one link, or RoCE v1. The asking end names one of each kind
that it has; the answering end takes the best one that both have, and answers with its own. Within
an InfiniBand subnet a queue pair is addressed by LID.
"""

from __future__ import annotations

import ipaddress
from typing import Final

import msgspec

from tensorcast.movers.transports.rdma.wire import Address, Card
from tensorcast.schema.errors import Unavailable
from tensorcast.schema.rdma import RdmaSettings
from tensorcast.storage.nics import ETHERNET, Gid, Port, best_gids, match_gids

HOPS_MAX: Final = 64
PREFIX_BYTES: Final = 8
"""Of a GID, the part that names the subnet."""


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """What a queue pair is told of the way to its peer: by `gid` from the port's GID `source`, or,
    without one, by `lid`."""

    gid: str = ""
    source: Gid | None = None
    lid: int = 0
    hops: int = HOPS_MAX
    traffic_class: int = 0
    service_level: int = 0


def addresses(port: Port, settings: RdmaSettings) -> tuple[Address, ...]:
    """What a peer is told of a port: the best GID of each kind, or the one that was asked for."""
    return tuple(
        Address(gid=gid.address, kind=gid.kind) for gid in best_gids(port.gids, settings.gid_index)
    )


def choose_route(name: str, port: Port, peer: Card, settings: RdmaSettings) -> Route:
    """The way from a port of device `name` to the peer. Raises Unavailable when there is none."""
    if peer.link != port.link:
        raise Unavailable(f"{name} is on {port.link}, the peer's on {peer.link}.")
    if port.link != ETHERNET:
        return _route_natively(name, port, peer, settings)
    ours = best_gids(port.gids, settings.gid_index)
    theirs = [Gid(index=0, address=one.gid, kind=one.kind) for one in peer.addresses]
    found = match_gids(ours, theirs)
    if found is None:
        kinds = ", ".join(f"{gid.kind} ({gid.family})" for gid in ours) or "none"
        raise Unavailable(
            f"Device {name} has no GID that can talk to the peer's; its own: {kinds}.",
            hint="Give both network interfaces addresses of the same kind, or set"
            " TENSORCAST_RDMA_GID_INDEX.",
        )
    return Route(
        gid=found[1].address,
        source=found[0],
        traffic_class=settings.traffic_class,
        service_level=settings.service_level,
    )


def _route_natively(name: str, port: Port, peer: Card, settings: RdmaSettings) -> Route:
    """Within an InfiniBand subnet. (Through a router the subnet manager would have to be asked.)"""
    ours = {_subnet(gid.address) for gid in port.gids}
    theirs = {_subnet(one.gid) for one in peer.addresses}
    if ours and theirs and ours.isdisjoint(theirs):
        raise Unavailable(f"The peer is in another InfiniBand subnet than {name}.")
    if not peer.lid:
        raise Unavailable("The peer's port has no LID: the subnet manager does not know it.")
    return Route(lid=peer.lid, service_level=settings.service_level)


def _subnet(gid: str) -> bytes:
    return ipaddress.IPv6Address(gid).packed[:PREFIX_BYTES]
