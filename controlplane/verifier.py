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
from sqlalchemy.ext.asyncio import AsyncEngine

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
    engine = make_engine(os.environ["TENSORCAST_POSTGRES_URL"], name="tensorcast verifier")
    with asyncio.Runner() as runner:
        for line in sys.stdin.buffer:
            request = msgspec.json.decode(line, type=VerifySpan)
            sys.stdout.buffer.write(runner.run(answer(engine, request)) + b"\n")
            sys.stdout.buffer.flush()
        runner.run(engine.dispose())
    return 0


async def answer(engine: AsyncEngine, request: VerifySpan) -> bytes:
    """The reply to one request. The connection is kept for the next one."""
    try:
        async with connecting(engine) as connection:
            return reply_ok(await verify_span(connection, request))
    except TensorCastError as error:
        return reply_error(to_body(error))


if __name__ == "__main__":
    sys.exit(main())
