"""Blocking work beside the event loop."""

from __future__ import annotations

import asyncio
import ctypes
import os
import traceback
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

_find_processor = ctypes.CDLL(None).sched_getcpu

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """As `asyncio.to_thread`, but never left behind: when the caller is cancelled, it waits for
    the work to end first. So what the work uses may be freed when this returns or raises."""
    running = asyncio.ensure_future(asyncio.to_thread(_work, partial(work, *args, **kwargs)))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # what went wrong concerns nobody any more
        raise


def _work(work: Callable[[], T]) -> T:
    try:
        return work()
    except BaseException as error:
        _forget_frames(error)
        raise


def _forget_frames(error: BaseException | None) -> None:
    """An error keeps the frames that it and its causes came through, and they views of memory; so
    their segments could not be closed until some later garbage collection."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def step_aside(processor: int) -> None:
    """Moves the calling thread off a processor that it shares with somebody who has work to do
    there, if it may run on another one. (In a virtual machine Linux wakes a thread beside its waker
    or where it was, although others rest: it takes a halted virtual processor for an absent one.)
    """
    if _find_processor() != processor:
        return
    allowed = os.sched_getaffinity(0)
    others = allowed - {processor}
    if others:
        os.sched_setaffinity(0, others)
        os.sched_setaffinity(0, allowed)
