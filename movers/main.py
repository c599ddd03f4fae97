"""The mover process: `python -m tensorcast.movers.main`. Owns the order of start and stop.

Exit status: 0 stopped in good order, 1 broken, 2 wrong settings, 3 fenced by a newer life.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from tensorcast.log.jetstream import CONNECT_S_MAX, JetStreamLog, await_log, connect_log
from tensorcast.movers.agent import Fenced
from tensorcast.movers.beginning import check_log
from tensorcast.movers.budget import check_budgets
from tensorcast.movers.journal import Journal
from tensorcast.movers.mover import VIEW_FILE, Mover
from tensorcast.movers.notify import Notifier, adopt_descriptors
from tensorcast.movers.recollection import find_in, recall
from tensorcast.movers.settings import Settings, read_settings
from tensorcast.movers.threads import in_thread
from tensorcast.schema.errors import (
    InvalidArgument,
    TensorCastError,
    Unavailable,
    find_leaves,
)
from tensorcast.schema.rdma import find_misspelt

EXIT_BROKEN: Final = 1
EXIT_USAGE: Final = 2
EXIT_FENCED: Final = 3
RETRY_S: Final = 0.2
ALONE_AFTER_S: Final = 2.0
"""A mover that remembers the log waits so long for it before it begins without it."""
LOCK_TRIES_MAX: Final = 20
THREADS_MAX: Final = 32
SWITCH_S: Final = 0.0005
"""Threads that answer applications wait no longer for the event loop to let go of the interpreter:
Python's own 5 ms would be a hundred answers."""

_logger = logging.getLogger(__name__)


def main() -> int:
    """Runs a mover until it is told to stop; returns the exit status."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        settings = read_settings(os.environ)
        settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        check_budgets(settings.dram_bytes, settings.disk_bytes, settings.data_dir)
    except InvalidArgument as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    for sentence in find_misspelt(os.environ):
        _logger.warning("%s", sentence)
    _raise_limits()
    sys.setswitchinterval(SWITCH_S)
    kept = adopt_descriptors(os.environ, os.getpid())
    notifier = Notifier.from_environ(os.environ)
    try:
        return asyncio.run(_run(settings, kept, notifier))
    except TensorCastError as error:
        return _give_up([error], notifier)
    except ExceptionGroup as group:
        fenced, others = group.split(Fenced)
        known, unknown = others.split(TensorCastError) if others else (None, None)
        if unknown is not None:
            raise
        if fenced is not None:
            _logger.error("fenced: %s", find_leaves(fenced)[0])
            return EXIT_FENCED
        return _give_up(find_leaves(known), notifier)
    finally:
        notifier.close()


def _raise_limits() -> None:
    """Each reader of the node costs a descriptor, and the usual soft limit is meant for `select`;
    adapters and GPUs lock the memory that they reach."""
    for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK):
        _, hard = resource.getrlimit(limit)
        resource.setrlimit(limit, (hard, hard))


def _give_up(errors: Sequence[BaseException], notifier: Notifier) -> int:
    for error in errors:
        _logger.error("%s", error)
        notifier.status(str(error))
    return EXIT_BROKEN


async def _run(settings: Settings, kept: dict[str, int], notifier: Notifier) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="work"))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    with ExitStack() as owned:
        owned.callback(os.close, await _lock(settings.data_dir))
        journal = Journal(settings.data_dir / "journal.db", settings.node)
        owned.callback(journal.close)
        remembered = await in_thread(recall, settings.data_dir / VIEW_FILE, settings.cluster)
        log = await _connect(settings, notifier.status, stopping, may_wait=remembered is None)
        if log is None:
            return 0
        begun = None
        try:
            if not log.is_away:
                await check_log(log, journal)
                begun, remembered = await find_in(log, remembered), None
            with Mover(settings, log, journal, notifier, remembered, begun) as mover:
                await mover.live(kept, stopping)
        finally:
            await log.aclose()
    return 0


async def _lock(folder: Path) -> int:
    """Two movers must never share a folder. Raises Unavailable."""
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for _ in range(LOCK_TRIES_MAX):
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        await asyncio.sleep(RETRY_S / 2)
    os.close(lock)
    raise Unavailable(
        f"Another mover uses {folder}.", hint="Stop it, or give this one a folder of its own."
    )


async def _connect(
    settings: Settings, status: Callable[[str], None], stopping: asyncio.Event, *, may_wait: bool
) -> JetStreamLog | None:
    """The log, as soon as it can be reached; None when the mover is to stop before that. If it may
    not wait, the log as one that is away."""
    told, name = "", f"mover {settings.node}"
    while not stopping.is_set():
        try:
            return await connect_log(
                settings.nats_url,
                settings.cluster,
                name=name,
                access=settings.access,
                timeout_s=CONNECT_S_MAX if may_wait else ALONE_AFTER_S,
            )
        except Unavailable as error:
            if not may_wait:
                _logger.warning("%s This mover begins without it.", error)
                return await_log(
                    settings.nats_url, settings.cluster, name=name, access=settings.access
                )
            if str(error) != told:
                told = str(error)
                _logger.warning("%s", told)
                status(f"waiting for NATS: {told}")
        with suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), RETRY_S)
    return None


if __name__ == "__main__":
    sys.exit(main())
