from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from tensorcast.controlplane.services.ticking import with_ticks


class Source:
    """Gives what is put into it, one by one, until it is ended."""

    def __init__(self) -> None:
        self.waiting: asyncio.Queue[int | None] = asyncio.Queue()
        self.closed = False

    async def read(self):
        try:
            while (item := await self.waiting.get()) is not None:
                yield item
        finally:
            self.closed = True


async def test_everything_comes_and_silence_is_told():
    source = Source()
    source.waiting.put_nowait(1)
    got = []
    async with aclosing(with_ticks(source.read(), 0.001)) as items:
        async for item in items:
            got.append(item)
            if item is None and got.count(None) == 2:
                source.waiting.put_nowait(2)
                source.waiting.put_nowait(None)
    assert [item for item in got if item is not None] == [1, 2]
    assert got[:3] == [1, None, None]
    assert source.closed


async def test_the_source_is_closed_with_it():
    source = Source()
    async with aclosing(with_ticks(source.read(), 0.001)) as items:
        assert await anext(items) is None
    assert source.closed


async def test_an_error_of_the_source_is_raised():
    async def broken():
        yield 1
        raise ValueError("broken")

    items = with_ticks(broken(), 1)
    assert await anext(items) == 1
    with pytest.raises(ValueError, match="broken"):
        await anext(items)
