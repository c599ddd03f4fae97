"""The tail: what any reader gets is the log itself, wherever it stands and whatever is kept."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager

import pytest

from samples import artifact_id
from tensorcast.log.identity import new_event_id, now
from tensorcast.log.memory import MemoryLog
from tensorcast.log.tail import Tail
from tensorcast.schema.envelope import Draft
from tensorcast.schema.events import ArtifactPinned
from tensorcast.schema.ids import Seq


class Counted(MemoryLog):
    """A log that counts who reads it, and what it hands out."""

    def __init__(self) -> None:
        super().__init__()
        self.readers = 0
        self.given = 0

    async def read(self, *, after, batch_max=1000):
        self.readers += 1
        async with aclosing(super().read(after=after, batch_max=batch_max)) as batches:
            async for batch in batches:
                self.given += len(batch)
                yield batch


async def grow(log, count: int) -> None:
    for number in range(count):
        event = ArtifactPinned(artifact=artifact_id(str(number)))
        await log.append([Draft(id=new_event_id(), at=now(), actor="user:a@b", event=event)])


async def settle() -> None:
    """Lets everybody go on as far as they can."""
    for _ in range(50):
        await asyncio.sleep(0)


async def take(log, after: int, count: int, batch_max: int = 1000) -> list[int]:
    """The positions of the next `count` events."""
    seqs: list[int] = []
    async with aclosing(log.read(after=Seq(after), batch_max=batch_max)) as batches:
        async for batch in batches:
            assert 0 < len(batch) <= batch_max
            seqs += [one.seq for one in batch]
            if len(seqs) >= count:
                return seqs
    raise AssertionError


@asynccontextmanager
async def tailing(log, **limits):
    tail = Tail(log, **limits)
    task = asyncio.create_task(tail.run())
    await settle()
    try:
        yield tail
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_readers_at_the_end_share_one_reading():
    log = Counted()
    await grow(log, 5)
    async with tailing(log) as tail:
        readers = [asyncio.create_task(take(tail, 5, 20)) for _ in range(3)]
        await asyncio.sleep(0)
        await grow(log, 20)
        for seqs in await asyncio.gather(*readers):
            assert seqs == list(range(6, 26))
    assert (log.readers, log.given) == (1, 20)


async def test_who_is_behind_reads_for_himself_until_he_has_caught_up():
    log = Counted()
    await grow(log, 10)
    async with tailing(log) as tail:
        reading = asyncio.create_task(take(tail, 0, 15, batch_max=4))
        await settle()
        assert log.readers == 2
        await grow(log, 5)
        assert await reading == list(range(1, 16))
    assert log.given == 10 + 5


@pytest.mark.parametrize("limits", [{"events_max": 4}, {"bytes_max": 1}])
async def test_little_is_kept_and_nothing_is_missed(limits):
    log = Counted()
    async with tailing(log, **limits) as tail:
        await grow(log, 50)
        await settle()
        for after in (0, 30, 47, 49):
            assert await take(tail, after, 50 - after, batch_max=3) == list(range(after + 1, 51))


async def test_a_slow_reader_holds_nobody_back():
    log = Counted()
    async with (
        tailing(log, events_max=4) as tail,
        aclosing(tail.read(after=Seq(0), batch_max=2)) as slow,
    ):
        await grow(log, 1)
        assert [one.seq for one in await anext(slow)] == [1]
        await grow(log, 30)
        assert await take(tail, 1, 30) == list(range(2, 32))
        rest: list[int] = []
        while len(rest) < 30:
            rest += [one.seq for one in await anext(slow)]
        assert rest == list(range(2, 32))


async def test_without_its_task_it_is_the_log_itself():
    log = Counted()
    await grow(log, 3)
    assert await take(Tail(log), 1, 2) == [2, 3]
