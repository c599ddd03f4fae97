"""`python -m tensorcast.controlplane.verifier`: checks spans of the history, one after the other.

It reads a request (`VerifySpan`) a line and writes its answer (`SpanInfo`, or an error) a line, so
that several of them use several CPUs. It ends when nobody is there to ask.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys

import msgspec

from tensorcast.controlplane.store.engine import connecting, make_engine
from tensorcast.controlplane.store.verification import verify_span
from tensorcast.schema.api import reply_error, reply_ok
from tensorcast.schema.api_audit import VerifySpan
from tensorcast.schema.errors import TensorCastError, to_body

NICENESS = 5
"""What people wait for goes before it."""


def main() -> int:
    """Answers until its input ends."""
    os.nice(NICENESS)
    gc.disable()  # millions of short lives, and no cycles among them
    url = os.environ["TENSORCAST_POSTGRES_URL"]
    with asyncio.Runner() as runner:
        for line in sys.stdin.buffer:
            request = msgspec.json.decode(line, type=VerifySpan)
            sys.stdout.buffer.write(runner.run(answer(url, request)) + b"\n")
            sys.stdout.buffer.flush()
    return 0


async def answer(url: str, request: VerifySpan) -> bytes:
    """The reply to one request."""
    engine = make_engine(url, name="tensorcast verifier", pooled=False)
    try:
        async with connecting(engine) as connection:
            return reply_ok(await verify_span(connection, request))
    except TensorCastError as error:
        return reply_error(to_body(error))
    finally:
        await engine.dispose()


if __name__ == "__main__":
    sys.exit(main())
