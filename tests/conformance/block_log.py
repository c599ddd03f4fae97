"""What every KV log must do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import pytest

from block_samples import block_draft, cleared, evicted, keys, stored
from tensorcast.log.blocks import BlockLog
from tensorcast.log.port import APPEND_EVENTS_MAX, Stored
from tensorcast.schema.block_events import BlockEvent, decode_blocks
from tensorcast.schema.errors import Corrupt, InvalidArgument
from tensorcast.schema.ids import NodeId, Seq

Check = Callable[[BlockLog], Awaitable[None]]


async def read_blocks(log: BlockLog, last: int, *, after: int = 0) -> list[Stored]:
    """Everything after `after` that is there, up to `last`."""
    got: list[Stored] = []
    created = (await log.reach()).created
    async with asyncio.timeout(20), aclosing(log.read(created, after=Seq(after))) as batches:
        async for batch in batches:
            assert batch
            got += batch
            if got[-1].seq >= last:
                break
    return got


def events_of(found: list[Stored]) -> list[BlockEvent]:
    return [decode_blocks(one.payload, one.seq).event for one in found]


async def what_is_read_is_what_was_appended(log: BlockLog) -> None:
    assert (await log.reach()).last == 0
    first = [stored(keys(3)), evicted(keys(1))]
    assert await log.append([block_draft(one) for one in first]) == 2
    assert await log.append([block_draft(cleared("n2"))]) == 3
    assert events_of(await read_blocks(log, 3)) == [*first, cleared("n2")]
    assert events_of(await read_blocks(log, 3, after=2)) == [cleared("n2")]
    reach = await log.reach()
    assert (reach.first, reach.last) == (1, 3)


async def reading_goes_on_with_what_comes(log: BlockLog) -> None:
    created = (await log.reach()).created
    async with asyncio.timeout(20), aclosing(log.read(created, after=Seq(0))) as batches:
        waiting = asyncio.ensure_future(anext(batches))
        await asyncio.sleep(0)
        assert not waiting.done()
        await log.append([block_draft(stored(keys(1)))])
        assert events_of(list(await waiting)) == [stored(keys(1))]


async def a_repeated_append_is_found(log: BlockLog) -> None:
    alone = [block_draft(stored(keys(1)))]
    several = [block_draft(cleared()), block_draft(stored(keys(2)))]
    assert [await log.append(alone), await log.append(alone)] == [1, 1]
    assert [await log.append(several), await log.append(several)] == [3, 3]
    assert (await log.reach()).last == 3


async def the_last_clearing_of_each_node_is_known(log: BlockLog) -> None:
    assert await log.last_cleared(NodeId("n1")) == 0
    await log.append([block_draft(cleared("n1")), block_draft(stored(keys(1), "n1"))])
    await log.append([block_draft(cleared("n2"))])
    await log.append([block_draft(cleared("n1")), block_draft(stored(keys(1), "n1"))])
    assert await log.last_cleared(NodeId("n1")) == 4
    assert await log.last_cleared(NodeId("n2")) == 3
    assert await log.last_cleared(NodeId("n3")) == 0


async def another_log_is_never_taken_for_this_one(log: BlockLog) -> None:
    await log.append([block_draft(cleared())])
    for created, after in (("another", 0), ((await log.reach()).created, 9)):
        with pytest.raises(Corrupt):
            async with asyncio.timeout(20), aclosing(log.read(created, after=Seq(after))) as it:
                await anext(it)


async def too_many_at_once_are_refused(log: BlockLog) -> None:
    with pytest.raises(InvalidArgument, match="1001"):
        await log.append([block_draft(cleared()) for _ in range(APPEND_EVENTS_MAX + 1)])
    assert (await log.reach()).last == 0


BLOCK_CHECKS: tuple[Check, ...] = (
    what_is_read_is_what_was_appended,
    reading_goes_on_with_what_comes,
    a_repeated_append_is_found,
    the_last_clearing_of_each_node_is_known,
    another_log_is_never_taken_for_this_one,
    too_many_at_once_are_refused,
)
