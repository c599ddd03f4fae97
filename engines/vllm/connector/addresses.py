"""Where other nodes serve blocks: for those that a request was told of, before the log says who
holds what."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from tensorcast.client.api import ControlPlane
from tensorcast.client.context import Context
from tensorcast.client.position import Position
from tensorcast.schema.errors import TensorCastError

KNOWN_S: Final = 30.0
REFUSED_S: Final = 2.0
"""After the control plane did not answer it is left alone for so long."""
ANSWER_S: Final = 1.0


class Addresses:
    """Keeps what `ask` (node -> address) last said, for a while. For any number of threads."""

    def __init__(self, ask: Callable[[], Mapping[str, str]]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._known: Mapping[str, str] = {}
        self._until_s = 0.0

    def find(self, node: str) -> str | None:
        """The address of a node; None when nobody says it."""
        with self._lock:
            if time.monotonic() >= self._until_s:
                self._learn()
            return self._known.get(node)

    def forget(self) -> None:
        """A node did not answer at its address: it is asked for anew."""
        self._until_s = min(self._until_s, time.monotonic() + REFUSED_S)

    def _learn(self) -> None:
        try:
            self._known = self._ask()
            self._until_s = time.monotonic() + KNOWN_S
        except (TensorCastError, TimeoutError):
            self._until_s = time.monotonic() + REFUSED_S


def ask_control_plane(context: Context, actor: str) -> dict[str, str]:
    """The addresses of the nodes that are up. Not in a thread with an event loop. Raises
    TensorCastError, TimeoutError."""
    return asyncio.run(asyncio.wait_for(_ask(context, actor), ANSWER_S))


async def _ask(context: Context, actor: str) -> dict[str, str]:
    api = ControlPlane(
        context.nats_url,
        context.cluster,
        actor,
        Position(),
        timeout_s=ANSWER_S,
        access=context.access,
    )
    try:
        return {one.node: one.address for one in await api.nodes() if one.state == "up"}
    finally:
        await api.aclose()
