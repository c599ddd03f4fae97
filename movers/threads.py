"""Blocking work beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """As `asyncio.to_thread`, but never left behind: when the caller is cancelled, it waits for
    the work to end first. So what the work uses may be freed when this returns or raises."""
    running = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # what went wrong concerns nobody any more
        raise
    finally:
        # An error keeps the frames it came through; with this one it would keep itself alive, and
        # views of memory with it, until some later garbage collection.
        del running
