"""What every log must do. `check_log` runs it all; a test module parametrizes over the parts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import timedelta

import pytest

from samples import artifact_id, manifest
from tensorcast.log.identity import new_event_id, now
from tensorcast.log.port import APPEND_EVENTS_MAX, Cursors, Log, Stored
from tensorcast.schema.codec import decode
from tensorcast.schema.envelope import Draft
from tensorcast.schema.errors import Conflict, Corrupt, InvalidArgument, Unavailable
from tensorcast.schema.events import ArtifactSealed, Event, NodeCordoned
from tensorcast.schema.ids import NodeId, Seq
from tensorcast.schema.subjects import parse_log_subject

Check = Callable[[Log], Awaitable[None]]


def cordoned(node: str) -> NodeCordoned:
    return NodeCordoned(node=NodeId(node))


def draft(event: Event, expected: int | None = None, **fields) -> Draft:
    seq = None if expected is None else Seq(expected)
    return Draft(
        **{"id": new_event_id(), "at": now(), "actor": "user:ada@desk", **fields},
        event=event,
        expected=seq,
    )


async def read_until(log: Log, last: int, *, after: int = 0, batch_max: int = 1000) -> list[Stored]:
    """Everything after `after` up to `last`."""
    got: list[Stored] = []
    async with asyncio.timeout(20), aclosing(log.read(after=Seq(after), batch_max=batch_max)) as it:
        async for batch in it:
            assert 0 < len(batch) <= batch_max
            got += batch
            if got[-1].seq >= last:
                break
    return got


async def positions_start_at_one_and_have_no_gaps(log: Log) -> None:
    assert await log.last_seq() == 0
    assert await log.append([draft(cordoned("n1"))]) == (1,)
    assert await log.append([draft(cordoned("n1")), draft(cordoned("n2"))]) == (2, 3)
    assert await log.append([]) == ()
    assert await log.last_seq() == 3


async def what_is_read_is_what_was_appended(log: Log) -> None:
    drafts = [
        draft(cordoned("n1"), trace="t-1", cause=new_event_id()),
        draft(ArtifactSealed(artifact=artifact_id("a"), kind="weights", manifest=manifest())),
        draft(cordoned("n.with.dots and ünïcode")),
    ]
    await log.append(drafts)
    for given, stored in zip(drafts, await read_until(log, 3), strict=True):
        read = decode(stored.payload, stored.seq)
        assert (read.id, read.at, read.actor) == (given.id, given.at, given.actor)
        assert (read.cause, read.trace, read.event) == (given.cause, given.trace, given.event)
    assert parse_log_subject(stored.subject) == ("node", "n.with.dots and ünïcode")


async def reading_starts_anywhere_and_goes_on(log: Log) -> None:
    await log.append([draft(cordoned(f"n{number}")) for number in range(25)])
    assert [one.seq for one in await read_until(log, 25, batch_max=4)] == list(range(1, 26))
    async with asyncio.timeout(20), aclosing(log.read(after=Seq(24))) as batches:
        assert [one.seq for one in await anext(batches)] == [25]
        waiting = asyncio.ensure_future(anext(batches))
        await asyncio.sleep(0)
        assert not waiting.done()
        await log.append([draft(cordoned("n1"))])
        assert [one.seq for one in await waiting] == [26]


async def one_event_is_read_by_its_position(log: Log) -> None:
    await log.append([draft(cordoned("n1")), draft(cordoned("n2"))])
    assert await log.read_one(Seq(0)) is None
    assert await log.read_one(Seq(3)) is None
    assert [await log.read_one(Seq(2))] == await read_until(log, 2, after=1)


async def reading_beyond_the_end_is_refused(log: Log) -> None:
    await log.append([draft(cordoned("n1"))])
    with pytest.raises(Corrupt, match="ends at 1"):
        await read_until(log, 9, after=5)


async def a_stale_writer_is_refused(log: Log) -> None:
    (first,) = await log.append([draft(cordoned("n1"), 0)])
    await log.append([draft(cordoned("n2"), 0)])
    for stale in (0, first + 1, first + 7):
        with pytest.raises(Conflict):
            await log.append([draft(cordoned("n1"), stale)])
    assert await log.append([draft(cordoned("n1"), first)]) == (3,)
    assert await log.last_seq() == 3


async def an_append_is_all_or_nothing(log: Log) -> None:
    await log.append([draft(cordoned("n1"), 0)])
    with pytest.raises(Conflict):
        await log.append([draft(cordoned("n2"), 0), draft(cordoned("n1"), 0)])
    with pytest.raises(Conflict):
        await log.append([draft(cordoned("n1"), 0), draft(cordoned("n2"), 0)])
    assert await log.last_seq() == 1
    assert await log.append([draft(cordoned("n2"), 0), draft(cordoned("n1"), 1)]) == (2, 3)


async def one_append_can_hold_several_events_of_an_aggregate(log: Log) -> None:
    assert await log.append([draft(cordoned("n1"), 0), draft(cordoned("n1"))]) == (1, 2)
    assert await log.append([draft(cordoned("n1"), 2), draft(cordoned("n1"), 2)]) == (3, 4)
    with pytest.raises(Conflict):
        await log.append([draft(cordoned("n1"), 3), draft(cordoned("n1"))])
    with pytest.raises(InvalidArgument):
        await log.append([draft(cordoned("n1"), 4), draft(cordoned("n1"), 5)])
    with pytest.raises(InvalidArgument):
        await log.append([draft(cordoned("n1")), draft(cordoned("n1"), 4)])
    assert await log.last_seq() == 4


async def a_repeated_append_is_found(log: Log) -> None:
    alone, first, second = draft(cordoned("n1"), 0), draft(cordoned("n2")), draft(cordoned("n3"), 0)
    assert await log.append([alone]) == (1,)
    assert await log.append([alone]) == (1,)
    assert await log.append([first, second]) == (2, 3)
    assert await log.append([first, second]) == (2, 3)
    await log.append([draft(cordoned("n1"), 1), draft(cordoned("n2")), draft(cordoned("n3"), 3)])
    assert await log.append([alone]) == (1,)
    assert await log.append([first, second]) == (2, 3)
    assert await log.append([second, alone]) == (3, 1)
    assert await log.last_seq() == 6


async def a_half_repeated_append_is_refused(log: Log) -> None:
    known = draft(cordoned("n1"))
    await log.append([known])
    with pytest.raises(Conflict):
        await log.append([known, draft(cordoned("n2"))])
    with pytest.raises(Conflict):
        await log.append([draft(cordoned("n2")), known])
    assert await log.last_seq() == 1


async def an_old_draft_is_appended_once(log: Log) -> None:
    """A journal repeats what it could not get rid of for hours."""
    old = draft(cordoned("n1"), at=now() - timedelta(hours=3))
    assert await log.append([draft(cordoned("n1")), draft(cordoned("n2"))]) == (1, 2)
    assert await log.append([old, draft(cordoned("n2"))]) == (3, 4)
    assert await log.append([old]) == (3,)
    assert await log.append([old]) == (3,)


async def what_is_too_large_is_refused(log: Log) -> None:
    with pytest.raises(InvalidArgument, match="bytes"):
        await log.append([draft(cordoned("n1")), draft(cordoned("n" * (8 << 20)))])
    with pytest.raises(InvalidArgument, match="1001"):
        await log.append([draft(cordoned("n1")) for _ in range(APPEND_EVENTS_MAX + 1)])
    twice = draft(cordoned("n1"))
    with pytest.raises(InvalidArgument, match="twice"):
        await log.append([twice, twice])
    assert await log.last_seq() == 0
    assert len(await log.append([draft(cordoned("n1")) for _ in range(APPEND_EVENTS_MAX)])) == 1000
    assert await log.append([_big()]) == (1001,)
    assert (await read_until(log, 1001, after=1000))[0].payload.count(b"x") >= 6 << 20


def _big() -> Draft:
    labels = {"much": "x" * (6 << 20)}
    sealed = ArtifactSealed(
        artifact=artifact_id("a"), kind="weights", manifest=manifest(), labels=labels
    )
    return draft(sealed)


async def racing_writers_win_once(log: Log) -> None:
    async def claim(number: int) -> int:
        try:
            await log.append([draft(cordoned("prize"), 0), draft(cordoned(f"n{number}"), 0)])
        except Conflict:
            return 0
        return 1

    assert sum(await asyncio.gather(*(claim(number) for number in range(20)))) == 1
    assert await log.last_seq() == 2


async def racing_twins_append_once(log: Log) -> None:
    """Two schedulers that decide the same thing at once use the same ids."""
    twins = [draft(cordoned("n1"), 0), draft(cordoned("n2"), 0)]
    found = await asyncio.gather(*(log.append(twins) for _ in range(5)))
    assert set(found) == {(1, 2)}
    assert await log.last_seq() == 2


async def a_closed_log_says_so(log: Log) -> None:
    reading = asyncio.ensure_future(read_until(log, 1))
    await asyncio.sleep(0.05)
    await log.aclose()
    await log.aclose()
    with pytest.raises(Unavailable):
        await reading
    with pytest.raises(Unavailable):
        await log.append([draft(cordoned("n1"))])
    with pytest.raises(Unavailable):
        await log.last_seq()


CHECKS: tuple[Check, ...] = (
    positions_start_at_one_and_have_no_gaps,
    what_is_read_is_what_was_appended,
    reading_starts_anywhere_and_goes_on,
    one_event_is_read_by_its_position,
    reading_beyond_the_end_is_refused,
    a_stale_writer_is_refused,
    an_append_is_all_or_nothing,
    one_append_can_hold_several_events_of_an_aggregate,
    a_repeated_append_is_found,
    a_half_repeated_append_is_refused,
    an_old_draft_is_appended_once,
    what_is_too_large_is_refused,
    racing_writers_win_once,
    racing_twins_append_once,
    a_closed_log_says_so,
)


async def check_log(make_log: Callable[[], Awaitable[Log]]) -> None:
    """Runs every check, each on a new empty log."""
    for check in CHECKS:
        log = await make_log()
        try:
            await check(log)
        finally:
            await log.aclose()


async def check_cursors(cursors: Cursors) -> None:
    """A cursor starts at 0, moves forward, and never back; each reader has its own."""
    assert await cursors.load("policy:replicate") == 0
    await cursors.store("policy:replicate", Seq(5))
    await cursors.store("policy:replicate", Seq(3))
    assert await cursors.load("policy:replicate") == 5
    assert await cursors.load("policy.replicate") == 0
    await asyncio.gather(*(cursors.store("racing ünï", Seq(seq)) for seq in (7, 9, 8)))
    assert await cursors.load("racing ünï") == 9
    await cursors.check_room()
    assert await cursors.load("policy:replicate") == 5
