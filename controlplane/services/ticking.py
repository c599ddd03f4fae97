"""A reader that comes up for air: between two batches, and also when none comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TypeVar

T = TypeVar("T")


async def with_ticks(source: AsyncGenerator[T, None], period_s: float) -> AsyncGenerator[T | None]:
    """All that `source` gives, and None each time that it has given nothing for `period_s`. Owns
    the source: closes it at the end."""
    pending: asyncio.Future[T] | None = None
    try:
        while True:
            if pending is None:
                pending = asyncio.ensure_future(anext(source))
            await asyncio.wait((pending,), timeout=period_s)
            if not pending.done():
                yield None
                continue
            got, pending = pending, None
            try:
                item = got.result()
            except StopAsyncIteration:
                return
            yield item
    finally:
        if pending is not None:
            pending.cancel()
            await asyncio.gather(pending, return_exceptions=True)
        await source.aclose()
