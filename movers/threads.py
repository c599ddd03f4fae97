"""Blocking work beside the event loop."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

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
