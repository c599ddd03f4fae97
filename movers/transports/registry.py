"""The transports by name, and the choice of one. A transport is imported when it is first used."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tensorcast.movers.transports.base import SignTicket, Transport
from tensorcast.schema.errors import Unavailable
from tensorcast.schema.ids import NodeId

Constructor = Callable[[str, NodeId, bool, SignTicket | None], Transport]
"""Makes a transport for a mover: (cluster, node, whether it checks chunks as they arrive, what
signs its tickets)."""


def _tcp(cluster: str, node: NodeId, verify: bool, sign: SignTicket | None) -> Transport:
    from tensorcast.movers.transports.tcp.client import TcpTransport
    from tensorcast.movers.transports.tcp.dialing import ClientLimits

    return TcpTransport(cluster, node, ClientLimits(verify=verify), sign)


CONSTRUCTORS: dict[str, Constructor] = {"tcp": _tcp}
"""The transports of this build, the best first."""


def make_transport(
    name: str,
    cluster: str,
    node: NodeId,
    *,
    verify: bool = True,
    sign: SignTicket | None = None,
) -> Transport:
    """The transport called `name`; without `verify` it takes bytes as they come, without `sign` it
    has no tickets. Raises Unavailable when this build has none."""
    constructor = CONSTRUCTORS.get(name)
    if constructor is None:
        raise Unavailable(
            f"This mover has no transport {name!r}.", hint=f"It has: {', '.join(CONSTRUCTORS)}."
        )
    return constructor(cluster, node, verify, sign)


def choose(ours: Sequence[str], theirs: Sequence[str]) -> str | None:
    """The best transport that both ends have; None when they share none."""
    return next((name for name in CONSTRUCTORS if name in ours and name in theirs), None)
