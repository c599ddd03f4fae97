"""`python -m tensorcast.controlplane.rebuilder`: makes the read models anew beside the live ones,
and swaps them in. The database is that of TENSORCAST_POSTGRES_URL; it must be migrated."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys

from tensorcast.controlplane.store.engine import connecting, make_engine
from tensorcast.controlplane.store.jobs import REBUILD, working
from tensorcast.controlplane.store.rebuild import rebuild_beside
from tensorcast.schema.errors import TensorCastError
from tensorcast.schema.ids import Seq

NICENESS = 5
"""What people wait for goes before it."""
_logger = logging.getLogger("tensorcast.rebuilder")


def main() -> int:
    """0: they are swapped in; 1: the live ones are as they were."""
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    os.nice(NICENESS)
    gc.disable()  # what is gathered stays to the end, and has no cycles
    try:
        asyncio.run(rebuild(os.environ["TENSORCAST_POSTGRES_URL"]))
    except TensorCastError as error:
        _logger.error("%s", error)
        return 1
    return 0


async def rebuild(url: str) -> Seq:
    """The whole work; the last event that the new tables have. Raises Conflict when another one is
    at work, and what the work raises."""
    engine = make_engine(url, name="tensorcast rebuild", pooled=False)
    try:
        clock = asyncio.get_running_loop().time
        async with working(engine, REBUILD, clock) as job, connecting(engine) as connection:
            seq = await rebuild_beside(connection, job)
            await job.end(None, seq)
            return seq
    finally:
        await engine.dispose()


if __name__ == "__main__":
    sys.exit(main())
