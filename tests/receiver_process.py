"""Engines of tests as processes: `python receiver_process.py CONTEXT KEY NAME@NODE[:MISHAP] ...`.

One process that imports torch forks the others, so that they begin at once; it prints `NAME PID`
for each that is ready. A mishap is `refuse` (it takes no weights whose first number is over 1000),
`die-at-stage`, `die-at-switch` or `die-after` (kill -9 before or after it does so, once).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import uuid
from collections.abc import Mapping

import msgspec
import torch

from tensorcast.client import Context, connect
from tensorcast.engines.presence import Presence
from tensorcast.engines.receiving import Receiver
from tensorcast.schema.rollouts import STAGE, SWITCH

TTL_S = 2.0
HEALTH = "weights.health"


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def serve(context: Context, key: str, engine: str, node: str, mishap: str, ready: int) -> None:
    """An engine, until it is killed."""
    model: dict[str, torch.Tensor] = {}

    def load(tensors: Mapping[str, torch.Tensor]) -> None:
        if mishap == "refuse" and float(tensors["w"][0]) > 1000:
            raise ValueError("too large for me")
        model.update(tensors)

    with (
        connect(msgspec.structs.replace(context, default_node=node)) as client,
        Presence(
            client.context,
            kind="test",
            engine=engine,
            life=uuid.uuid4().hex,
            node=node,
            ttl_s=TTL_S,
        ) as presence,
    ):
        calls = client.calls(engine)
        receiver = Receiver(client, presence, load)
        receiver.begin(key)
        os.write(ready, f"{engine} {os.getpid()}\n".encode())
        for call in calls:
            if (mishap, call.verb) in (("die-at-stage", STAGE), ("die-at-switch", SWITCH)):
                die()
            if not receiver.answer(call):
                number = float(model["w"][0])
                is_whole = bool((model["w"] == number).all())
                call.answer({"version": receiver.version, "number": number, "whole": is_whole})
            if call.verb == SWITCH:
                if mishap == "die-after":
                    die()
                number = float(model["w"][0])
                client.emit(HEALTH, {"engine": engine, "number": number})


def main() -> None:
    """Forks them all, and waits for them."""
    context = msgspec.json.decode(sys.argv[1], type=Context)
    children = []
    for one in sys.argv[3:]:
        engine, _, rest = one.partition("@")
        node, _, mishap = rest.partition(":")
        pid = os.fork()
        if not pid:
            serve(context, sys.argv[2], engine, node, mishap, sys.stdout.fileno())
        children.append(pid)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    try:
        for pid in children:
            os.waitpid(pid, 0)
    finally:
        for pid in children:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
