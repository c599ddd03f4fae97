"""While a log is brought in nobody else writes, whatever is started anew meanwhile."""

import asyncio

import pytest

from tensorcast.controlplane.services.gate import Gate, GatedAppender
from tensorcast.log.memory import MemoryCursors, MemoryLog
from tensorcast.schema.errors import Unavailable
from tensorcast.schema.ids import Seq


async def test_what_was_decided_before_the_gate_opened_is_decided_again():
    gate = Gate(MemoryCursors())
    appender = GatedAppender(MemoryLog(), gate)
    assert await appender.append([]) == ()
    await gate.close()
    waiting = asyncio.create_task(appender.append([]))
    assert not (await asyncio.wait([waiting], timeout=0.05))[0]
    assert await appender.last_seq() == Seq(0)
    with pytest.raises(Unavailable, match="being brought"):
        gate.check_open()
    await gate.release()
    with pytest.raises(Unavailable, match="brought in meanwhile"):
        await waiting
    assert await appender.append([]) == ()


async def test_a_gate_stays_closed_over_a_start_until_it_is_released():
    cursors = MemoryCursors()
    gate = Gate(cursors)
    await gate.load()
    assert gate.is_open
    await gate.close()
    later = Gate(cursors)
    await later.load()
    assert not later.is_open
    await later.release()
    last = Gate(cursors)
    await last.load()
    assert last.is_open
