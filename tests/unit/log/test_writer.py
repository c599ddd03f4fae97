from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import asynccontextmanager

import pytest

from conformance.log import cordoned, draft
from tensorcast.log.memory import MemoryLog
from tensorcast.log.port import APPEND_EVENTS_MAX, NoRoom
from tensorcast.log.writer import ALONE_MAX, Writer
from tensorcast.schema.codec import EVENT_BYTES_MAX
from tensorcast.schema.envelope import Draft
from tensorcast.schema.errors import Conflict, InvalidArgument, Unavailable
from tensorcast.schema.events import SignalEmitted
from tensorcast.schema.ids import Seq
from tensorcast.schema.signals import Topic


class Watched(MemoryLog):
    """Counts appends; the first `failures` of them are lost: before they happen, or after."""

    def __init__(self, *, failures: int = 0, before: bool = True) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.failures = failures
        self.before = before

    async def append(self, drafts: Sequence[Draft]) -> tuple[Seq, ...]:
        self.sizes.append(len(drafts))
        lost, self.failures = self.failures > 0, self.failures - 1
        if lost and self.before:
            raise Unavailable("gone")
        seqs = await super().append(drafts)
        if lost:
            raise Unavailable("no acknowledgement")
        return seqs


@asynccontextmanager
async def writing(log: MemoryLog, **options):
    writer = Writer(log, linger_s=0, **options)
    task = asyncio.create_task(writer.run())
    try:
        yield writer
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_callers_share_a_batch_and_get_their_own_positions():
    log = Watched()
    async with writing(log) as writer:
        sizes = [1, 3, 2]
        appends = [
            writer.append([draft(cordoned(f"{name}-{part}")) for part in range(size)])
            for name, size in zip("abc", sizes, strict=True)
        ]
        assert await asyncio.gather(*appends) == [(1,), (2, 3, 4), (5, 6)]
        assert log.sizes == [6]
        assert await writer.last_seq() == 6


async def test_a_few_events_of_different_things_go_each_by_itself():
    """Which is faster; many share a batch, and so does one that has several events."""
    log = Watched()
    several = ALONE_MAX + 1
    async with writing(log) as writer:
        for count, sizes in ((ALONE_MAX, [1] * ALONE_MAX), (several, [several])):
            found = await asyncio.gather(
                *(writer.append([draft(said(f"t.{number}"))]) for number in range(count)),
            )
            assert sorted(found) == [(Seq(await log.last_seq() - n),) for n in range(count)][::-1]
            assert log.sizes == sizes
            log.sizes.clear()
        one, other = [draft(said("t"))], [draft(cordoned("n1"), 0)]
        await asyncio.gather(writer.append(one), writer.append(other))
        assert log.sizes == [1, 1]
        log.sizes.clear()
        both = [draft(cordoned("n2")), draft(cordoned("n3"))]
        await asyncio.gather(writer.append([draft(said("t"))]), writer.append(both))
        assert log.sizes == [3]


class Held(MemoryLog):
    """Takes nothing until it is let go; tells what waits."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[int] = []
        self.let_go = asyncio.Event()

    async def append(self, drafts: Sequence[Draft]) -> tuple[Seq, ...]:
        self.waiting.append(len(drafts))
        await self.let_go.wait()
        return await super().append(drafts)


async def until_idle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_what_goes_alone_waits_for_nothing_but_the_same_thing():
    log = Held()
    async with writing(log) as writer:
        going = []
        for event in (said("t"), said("t"), cordoned("a"), cordoned("b")):
            going.append(asyncio.ensure_future(writer.append([draft(event)])))
            await until_idle()
        assert log.waiting == [1, 1, 1, 1]
        going.append(asyncio.ensure_future(writer.append([draft(cordoned("a"))])))
        await until_idle()
        assert log.waiting == [1, 1, 1, 1]
        log.let_go.set()
        found = await asyncio.gather(*going)
        assert found[2] < found[4] == (5,)


async def test_a_batch_waits_until_those_that_went_alone_have_ended():
    log = Held()
    async with writing(log) as writer:
        alone = asyncio.ensure_future(writer.append([draft(said("t"))]))
        await until_idle()
        batch = asyncio.ensure_future(writer.append([draft(said("t")), draft(said("u"))]))
        await until_idle()
        assert log.waiting == [1]
        log.let_go.set()
        assert await asyncio.gather(alone, batch) == [(1,), (2, 3)]


async def test_those_that_went_alone_are_told_when_it_stops():
    log = Held()
    writer = Writer(log, linger_s=0)
    task = asyncio.create_task(writer.run())
    going = [asyncio.ensure_future(writer.append([draft(said("t"))])) for _ in range(3)]
    await until_idle()
    assert log.waiting == [1, 1, 1]
    task.cancel()
    told = await asyncio.gather(*going, return_exceptions=True)
    assert [type(one) for one in told] == [Unavailable] * 3


async def test_a_signal_that_is_refused_harms_no_other():
    log = Watched()
    async with writing(log) as writer:
        found = await asyncio.gather(
            writer.append([draft(said("t", "x" * EVENT_BYTES_MAX))]),
            writer.append([draft(said("t"))]),
            return_exceptions=True,
        )
    assert isinstance(found[0], InvalidArgument)
    assert found[1] == (1,)


def said(topic: str, text: str = "") -> SignalEmitted:
    return SignalEmitted(topic=Topic(topic), data={"text": text})


async def test_a_batch_is_never_too_large():
    log = Watched()
    async with writing(log) as writer:
        half = APPEND_EVENTS_MAX * 2 // 3
        await asyncio.gather(
            *(
                writer.append([draft(cordoned(f"{name}-{part}")) for part in range(half)])
                for name in "abc"
            )
        )
        assert log.sizes == [half, half, half]
        with pytest.raises(InvalidArgument):
            await writer.append([draft(cordoned("a")) for _ in range(APPEND_EVENTS_MAX + 1)])


async def test_callers_of_one_aggregate_do_not_share_a_batch():
    """The second one has not seen the events of the first: it must be refused."""
    log = Watched()
    async with writing(log) as writer:
        found = await asyncio.gather(
            *(writer.append([draft(cordoned("n1"), 0)]) for _ in range(3)), return_exceptions=True
        )
        assert [type(one) for one in found] == [tuple, Conflict, Conflict]
        assert await log.last_seq() == 1


async def test_a_refused_caller_harms_no_other():
    log = Watched()
    await log.append([draft(cordoned("stale"))])
    log.sizes.clear()
    async with writing(log) as writer:
        found = await asyncio.gather(
            *(writer.append([draft(cordoned(f"n{number}"), 0)]) for number in range(9)),
            writer.append([draft(cordoned("stale"), 0), draft(cordoned("never"), 0)]),
            writer.append([draft(cordoned("n" * EVENT_BYTES_MAX))]),
            *(writer.append([draft(cordoned(f"m{number}"), 0)]) for number in range(9)),
            return_exceptions=True,
        )
    refused = [type(one) for one in found if not isinstance(one, tuple)]
    assert refused == [Conflict, InvalidArgument]
    assert await log.last_seq() == 1 + 18
    assert len(log.sizes) < 20


@pytest.mark.parametrize("before", [True, False])
async def test_a_lost_append_is_repeated_and_happens_once(before):
    log = Watched(failures=1, before=before)
    async with writing(log) as writer:
        assert await writer.append([draft(cordoned("n1"), 0)]) == (1,)
        assert log.sizes == [1, 1]
        assert await log.last_seq() == 1


async def test_it_gives_up_in_the_end_and_goes_on_with_the_next():
    log = Watched(failures=1)
    async with writing(log, retry_s=0) as writer:
        with pytest.raises(Unavailable):
            await writer.append([draft(cordoned("n1"))])
        assert await writer.append([draft(cordoned("n1"))]) == (1,)


async def test_a_caller_that_has_left_is_forgotten():
    log = Watched()
    writer = Writer(log, linger_s=0)
    left = asyncio.ensure_future(writer.append([draft(cordoned("left"))]))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.sleep(0)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(writer.run())
        assert await writer.append([draft(cordoned("stays"))]) == (1,)
        task.cancel()


async def test_those_who_wait_when_it_stops_are_told():
    writer = Writer(Watched(), linger_s=0)
    task = asyncio.create_task(writer.run())
    await asyncio.sleep(0)
    waiting = asyncio.ensure_future(writer.append([draft(cordoned("n1"))]))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(Unavailable):
        await waiting
    with pytest.raises(Unavailable):
        await writer.append([draft(cordoned("n1"))])


async def test_a_full_log_is_told_at_once():
    class Full(MemoryLog):
        async def append(self, drafts: Sequence[Draft]) -> tuple[Seq, ...]:
            raise NoRoom("It has no room.")

    async with writing(Full()) as writer, asyncio.timeout(1):
        with pytest.raises(NoRoom):
            await writer.append([draft(cordoned("n1"))])
        assert writer.trouble == "It has no room."


async def test_trouble_is_over_with_the_next_append():
    async with writing(Watched(failures=1), retry_s=0.0) as writer:
        with pytest.raises(Unavailable):
            await writer.append([draft(cordoned("n1"))])
        assert writer.trouble == "gone"
        await writer.append([draft(cordoned("n1"))])
        assert writer.trouble is None


async def test_events_that_nothing_was_decided_on_share_a_batch_in_their_order():
    """What movers report from their journals: one event after the other of one replica."""
    log = Watched()
    async with writing(log) as writer:
        first = writer.append([draft(cordoned("a"), expected=Seq(0))])
        later = [writer.append([draft(cordoned("a"))]) for _ in range(3)]
        assert await asyncio.gather(first, *later) == [(1,), (2,), (3,), (4,)]
        assert log.sizes == [4]
