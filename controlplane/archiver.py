"""`python -m tensorcast.controlplane.archiver`: moves old events from Postgres into files.

A process of its own, so that neither the persister nor the API waits for it. Safe to kill at any
moment: the next one goes on.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from tensorcast.controlplane.store.archiving import Archiver, Limits, plan_archive, why_nothing
from tensorcast.controlplane.store.engine import brief, connecting, make_engine
from tensorcast.controlplane.store.jobs import ARCHIVE, working
from tensorcast.schema.errors import OutOfCapacity, TensorCastError
from tensorcast.schema.ids import Seq
from tensorcast.storage.log_parquet import load_pyarrow

NICENESS = 5
"""What people wait for goes before it."""
_logger = logging.getLogger("tensorcast.archiver")


def main(arguments: Sequence[str] | None = None) -> int:
    """0: what is old is in files; 1: what was not moved is where it was."""
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    os.nice(NICENESS)
    parser = argparse.ArgumentParser(prog="tensorcast.controlplane.archiver", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the files go")
    parser.add_argument("--before-seq", type=int, help="events from this position on stay")
    parser.add_argument("--before-time", type=datetime.fromisoformat, help="events from then on")
    parser.add_argument("--keep-bytes", type=int, help="so many bytes of events stay")
    given = parser.parse_args(arguments)
    limits = Limits(
        before_seq=None if given.before_seq is None else Seq(given.before_seq),
        before_time=given.before_time,
        keep_bytes=given.keep_bytes,
    )
    cluster = os.environ.get("TENSORCAST_CLUSTER", "default")
    url = os.environ["TENSORCAST_POSTGRES_URL"]
    try:
        asyncio.run(archive(url, cluster, given.folder, limits))
    except (TensorCastError, DBAPIError) as error:
        _logger.error("%s", error if isinstance(error, TensorCastError) else brief(error))
        return 1
    return 0


async def archive(url: str, cluster: str, folder: Path, limits: Limits) -> int:
    """The whole work; how many events it moved. Raises Conflict when another one is at work,
    OutOfCapacity when the disk is full, and what the work raises."""
    engine = make_engine(url, name="tensorcast archive", pooled=False)
    try:
        clock = asyncio.get_running_loop().time
        async with working(engine, ARCHIVE, clock) as job, connecting(engine) as connection:
            load_pyarrow()
            works = await plan_archive(connection, limits)
            total, done = sum(one.last - one.first + 1 for one in works), 0
            archiver = Archiver(connection, cluster, folder)
            for one in works:
                await job.say(f"archives events {one.first} to {one.last}", done, total)
                try:
                    await archiver.archive(one)
                except OSError as error:
                    raise OutOfCapacity(
                        f"{folder} cannot be written: {error.strerror or error}.",
                        hint="Make room there, or name another folder.",
                    ) from error
                done += one.last - one.first + 1
            why = "" if works else await why_nothing(connection, limits)
            await job.end(None, done, f"moved nothing: {why}" if why else "")
            return done
    finally:
        await engine.dispose()


if __name__ == "__main__":
    sys.exit(main())
