"""Blocking work is never left behind, and its errors hold nothing."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from tensorcast.movers.threads import in_thread, step_aside


async def test_the_result_and_the_error_come_back():
    assert await in_thread(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await in_thread(divmod, 7, 0)


async def test_a_cancelled_caller_waits_for_the_work():
    go, done = threading.Event(), threading.Event()

    def work() -> None:
        go.wait(10)
        done.set()

    task = asyncio.ensure_future(in_thread(work))
    await asyncio.sleep(0)
    task.cancel()
    asyncio.get_running_loop().call_later(0.05, go.set)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done.is_set()


async def test_an_error_keeps_no_view_of_the_memory():
    memory = bytearray(10)

    def look(view: memoryview) -> None:
        raise KeyError(len(view))

    def work() -> None:
        try:
            look(memoryview(memory)[2:])
        except KeyError as error:
            raise ValueError(8) from error

    with pytest.raises(ValueError) as caught:
        await in_thread(work)
    memory.append(1)  # raises BufferError as long as a view is alive
    assert caught.value.args == (8,)


def test_a_thread_steps_aside_and_may_run_where_it_might_before():
    allowed = os.sched_getaffinity(0)
    for processor in (*allowed, 1 << 40):
        step_aside(processor)
        assert os.sched_getaffinity(0) == allowed
