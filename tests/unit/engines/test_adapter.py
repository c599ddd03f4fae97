"""Serving calls: each is answered once, by outputs or by a fault."""

from __future__ import annotations

import asyncio

import pytest

from tensorcast.engines.vllm import adapter
from tensorcast.engines.vllm.adapter import collect_verbs, serve
from tensorcast.schema.errors import InvalidArgument, NotFound, PermissionDenied, Unavailable


class Call:
    """A call, and what became of it. `refuses`: what the cluster says to answers, in turn."""

    def __init__(self, verb: str, *refuses: Exception, **arguments: object) -> None:
        self.id = f"call-{verb}"
        self.verb = verb
        self.arguments = arguments
        self.said: list[tuple] = []
        self.extended, self.ended = asyncio.Event(), asyncio.Event()
        self._refuses = list(refuses)
        self.wanted: bool | Exception = True

    async def answer(self, outputs):
        self._refuse()
        self.said.append(("answer", outputs))
        self.ended.set()

    async def fail(self, detail, *, kind, permanent):
        self._refuse()
        self.said.append(("fail", kind, detail, permanent))
        self.ended.set()

    async def is_wanted(self):
        if isinstance(self.wanted, Exception):
            raise self.wanted
        return self.wanted

    async def drop(self):
        self.said.append(("dropped",))
        self.ended.set()

    async def extend(self):
        self.extended.set()

    def _refuse(self):
        if self._refuses:
            raise self._refuses.pop(0)


class Calls:
    def __init__(self, *calls: Call) -> None:
        self._calls = list(calls)
        self.is_open = False

    async def __aenter__(self):
        self.is_open = True
        return self

    async def __aexit__(self, *_):
        self.is_open = False

    async def next(self):
        if self._calls:
            return self._calls.pop(0)
        await asyncio.Event().wait()


async def add(said):
    return {"sum": said["a"] + said["b"]}


async def miss(said):
    raise NotFound("There is no such thing.", hint="Make one.")


async def lack(said):
    raise Unavailable("It is away.")


async def break_off(said):
    raise ZeroDivisionError("by zero")


VERBS = {"add": add, "miss": miss, "lack": lack, "break": break_off}


async def run(*calls: Call, verbs=VERBS) -> None:
    """Serves until every call is answered."""
    given = Calls(*calls)
    serving = asyncio.create_task(serve(given, verbs))
    try:
        async with asyncio.timeout(30):
            for call in calls:
                await call.ended.wait()
        assert not serving.done()
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    assert not given.is_open


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    monkeypatch.setattr(adapter, "TELL_S", 0.001)


async def test_calls_are_answered_by_outputs_or_by_a_fault():
    calls = [Call("add", a=1, b=2), Call("miss"), Call("lack"), Call("sing")]
    await run(*calls)
    assert [call.said for call in calls[:3]] == [
        [("answer", {"sum": 3})],
        [("fail", "not_found", "There is no such thing. Make one.", False)],
        [("fail", "unavailable", "It is away.", False)],
    ]
    ((_, kind, detail, _),) = calls[3].said
    assert kind == "invalid"
    assert "cannot 'sing'" in detail
    assert "add, break, lack, miss" in detail


async def test_a_call_that_breaks_us_ends_nothing():
    calls = [Call("break"), Call("add", a=1), Call("add", a=1, b=1)]
    await run(*calls)
    assert "ZeroDivisionError" in calls[0].said[0][2]
    assert "KeyError" in calls[1].said[0][2]
    assert calls[2].said == [("answer", {"sum": 2})]


async def test_an_answer_waits_for_the_cluster():
    call = Call("add", Unavailable("no"), Unavailable("no"), a=1, b=2)
    await run(call)
    assert call.said == [("answer", {"sum": 3})]


async def test_an_answer_that_cannot_be_told_becomes_a_fault():
    call = Call("add", InvalidArgument("The data are too long."), a=1, b=2)
    await run(call)
    assert call.said == [("fail", "invalid", "The data are too long.", False)]


async def test_who_may_not_answer_goes_on_with_the_next():
    first, second = Call("add", PermissionDenied("No."), a=1, b=2), Call("add", a=1, b=2)
    first.ended.set()
    await run(first, second)
    assert (first.said, second.said) == ([], [("answer", {"sum": 3})])


async def test_what_nobody_waits_for_is_not_done():
    first, second, third = Call("add", a=1, b=2), Call("add", a=1, b=2), Call("add", a=1, b=2)
    first.wanted, second.wanted = False, Unavailable("Nobody knows.")
    second.ended.set()
    await run(first, second, third)
    assert (first.said, second.said) == ([("dropped",)], [])
    assert third.said == [("answer", {"sum": 3})]


async def test_calls_do_not_wait_for_each_other_but_are_limited(monkeypatch):
    monkeypatch.setattr(adapter, "AT_ONCE_MAX", 2)
    going, two, begun = asyncio.Event(), asyncio.Event(), []

    async def wait(said):
        begun.append(said["n"])
        if len(begun) == 2:
            two.set()
        await going.wait()
        return {}

    calls = [Call("wait", n=n) for n in range(3)]
    running = asyncio.create_task(run(*calls, verbs={"wait": wait}))
    await two.wait()
    assert begun == [0, 1]
    going.set()
    await running
    assert begun == [0, 1, 2]


async def test_a_long_call_is_kept_for_us(monkeypatch):
    monkeypatch.setattr(adapter, "ACK_S", 0.003)
    call = Call("wait")

    async def wait(said):
        await call.extended.wait()
        return {}

    await run(call, verbs={"wait": wait})
    assert call.extended.is_set()


def test_what_an_engine_can_be_asked():
    assert set(collect_verbs(None, "e1", "http://e")) == {
        "manifest",
        "locate",
        "publish",
        "prefetch",
        "hydrate",
        "evict",
        "stage",
        "switch",
        "unstage",
    }
