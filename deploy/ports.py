"""TCP ports of the embedded servers: chosen free once, kept, chosen again only when taken."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Iterable

from tensorcast.schema.errors import Unavailable

LOOPBACK = "127.0.0.1"
# Below the range that Linux hands to outgoing connections (32768-60999): a port that we keep in
# a file must not be taken by some browser's connection while the cluster is down.
PORTS = range(20_000, 32_000)
TRIES_MAX = 200


def is_free(port: int) -> bool:
    """Whether a server could listen on `port` of the loopback interface now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Connections of a former server in TIME_WAIT do not count: the servers set this as well.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def choose_port(
    *,
    taken: Iterable[int] = (),
    candidates: Iterable[int] | None = None,
    free: Callable[[int], bool] = is_free,
) -> int:
    """A free port that is not in `taken`.

    Raises `Unavailable` when none of the candidates is free.
    """
    avoid = set(taken)
    tries = random.sample(PORTS, TRIES_MAX) if candidates is None else candidates
    for port in tries:
        if port not in avoid and free(port):
            return port
    raise Unavailable(
        f"No free TCP port was found between {PORTS.start} and {PORTS.stop}.",
        hint="Stop some servers on this machine, then run `tcctl up` again.",
    )


def keep_or_choose(
    port: int, *, taken: Iterable[int] = (), free: Callable[[int], bool] = is_free
) -> int:
    """`port` itself while it is free, else another one."""
    avoid = set(taken)
    if port not in avoid and free(port):
        return port
    return choose_port(taken=avoid | {port}, free=free)
