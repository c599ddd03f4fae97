from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from tensorcast.client.context import Context
from tensorcast.client.portal import Portal, documented_as
from tensorcast.client.session import AsyncClient
from tensorcast.client.sync import Client
from tensorcast.schema.errors import InvalidArgument, NotFound, Unavailable
from tensorcast.storage.crew import spread


@pytest.fixture
def portal():
    opened = Portal()
    yield opened
    opened.close()


async def double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


def test_work_runs_in_a_thread_of_its_own_for_all_callers(portal):
    async def where() -> int:
        return threading.get_ident()

    first = portal.run(where())
    assert first != threading.get_ident()
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda _: portal.run(where()), range(8))) == {first}
        assert list(pool.map(lambda n: portal.run(double(n)), range(8))) == [
            0,
            2,
            4,
            6,
            8,
            10,
            12,
            14,
        ]


def test_errors_reach_the_caller(portal):
    async def fail() -> None:
        raise NotFound("nothing")

    with pytest.raises(NotFound):
        portal.run(fail())


def test_a_closed_portal_says_so(portal):
    portal.run(double(1))
    portal.close()
    portal.close()
    with pytest.raises(Unavailable, match="closed"):
        portal.run(double(1))


def test_a_call_from_within_is_refused_and_does_not_hang(portal):
    async def nested() -> int:
        return portal.run(double(1))

    with pytest.raises(InvalidArgument, match="own thread"):
        portal.run(nested())


def test_a_forked_child_starts_anew(portal):
    portal.run(double(1))
    before = portal._loop
    portal.forget()
    assert portal.run(double(2)) == 4
    assert portal._loop is not before
    [(loop, thread)] = portal._left_behind
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


class Waiting:
    @documented_as(Portal.run)
    def run(self) -> None:
        """As `Portal.run`; in a test."""

    @documented_as(Portal.close)
    def close(self) -> None:
        """As `Portal.close`."""


def test_help_tells_what_the_awaitable_method_says() -> None:
    told = Waiting.run.__doc__ or ""
    assert told.startswith("Runs `work` in the loop")
    assert told.endswith("\n\nIn a test.")
    assert Waiting.close.__doc__ == "Stops the thread. Safe to repeat; not from within the loop."
    assert "With `wait` it returns when" in (Client.put.__doc__ or "")
    assert "`await" not in (Client.put.__doc__ or "")


class Held:
    """Stands for the tensors of a caller."""


def is_let_go(fail) -> bool:
    """Whether the frame that called `fail` is gone once its error is, without the collector."""

    def call() -> weakref.ref[Held]:
        held = Held()
        with pytest.raises(InvalidArgument):
            fail()
        return weakref.ref(held)

    gc.disable()
    try:
        return call()() is None
    finally:
        gc.enable()


def refuse(*_: object) -> None:
    raise InvalidArgument("No.")


def test_an_error_does_not_keep_the_frames_that_it_passed(portal):
    async def refuse_here() -> None:
        refuse()

    async def refuse_in_thread() -> None:
        await client.run(refuse)

    client = AsyncClient(Context(cluster="c", nats_url="nats://127.0.0.1:1"))
    assert is_let_go(lambda: portal.run(refuse_here()))
    assert is_let_go(lambda: portal.run(refuse_in_thread()))
    assert is_let_go(lambda: spread(refuse, [1, 2, 3], 2))
