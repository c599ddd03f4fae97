"""What the API answers about signals."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from rigs import running_rig
from tensorcast.controlplane.core import admission
from tensorcast.controlplane.services.api import answer
from tensorcast.schema import api
from tensorcast.schema.api import parse_reply
from tensorcast.schema.api_signals import Emit, Emitted, TopicInfo, TopicsQuery
from tensorcast.schema.commands import EmitSignal
from tensorcast.schema.errors import (
    Corrupt,
    InvalidArgument,
    OutOfCapacity,
    PermissionDenied,
    Unavailable,
)
from tensorcast.schema.ids import Seq, derive_event_id


@pytest.fixture
async def rig():
    async with running_rig() as rig:
        yield rig


async def ask(rig, verb, request, shape):
    return parse_reply(await answer(rig.desk, verb, msgspec.json.encode(request)), shape)


async def emit(rig, topic, number=0, **changes):
    fields = {
        "topic": topic,
        "data": {"n": number},
        "actor": "user:ada@desk",
        "id": derive_event_id(topic, "test", number),
    }
    return await ask(rig, "signal.emit", Emit(**(fields | changes)), Emitted)


async def topics(rig, **changes):
    return await ask(rig, "signal.topics", TopicsQuery(**changes), tuple[TopicInfo, ...])


async def test_what_was_said_last_on_which_topic(rig):
    for number, topic in enumerate(("a.x", "a.y", "a.x")):
        last = await emit(rig, topic, number)
    found = await topics(rig, pattern="a.*", after=last.seq)
    assert [(one.topic, one.emitted, one.data) for one in found] == [
        ("a.x", 2, {"n": 2}),
        ("a.y", 1, {"n": 1}),
    ]
    assert found[0].seq == last.seq
    assert found[0].actor == "user:ada@desk"
    assert await topics(rig, pattern="a.x.*") == ()
    assert len(await topics(rig, limit=1)) == 1
    assert [one.data for one in await topics(rig, with_data=False)] == [None, None]


async def test_without_postgres_the_topics_are_known_and_not_what_they_say(rig):
    done = await emit(rig, "a.x")
    rig.history.away = True
    (found,) = await topics(rig, after=done.seq)
    assert (found.topic, found.emitted, found.data) == ("a.x", 1, None)


async def test_a_signal_is_emitted_once_for_each_id(rig):
    first, again = await emit(rig, "a", 1), await emit(rig, "a", 1)
    assert first == again
    assert await rig.log.last_seq() == 1


async def test_signals_of_one_topic_share_an_append(rig):
    appended = []
    append = rig.log.append

    async def note(drafts):
        appended.append(len(drafts))
        return await append(drafts)

    rig.log.append = note
    done = await asyncio.gather(*(emit(rig, "a", number) for number in range(50)))
    assert sorted(one.seq for one in done) == list(range(1, 51))
    assert len(appended) < 10, appended


async def test_commands_emit_too(rig):
    request = api.Execute(command=EmitSignal(topic="a", data={"n": 1}), actor="user:ada@desk")
    done = await ask(rig, "execute", request, api.Executed)
    (found,) = await topics(rig, after=done.seq)
    assert (found.topic, found.data) == ("a", {"n": 1})


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"topic": "a b"}, InvalidArgument),
        ({"topic": "a.>"}, InvalidArgument),
        ({"data": {"a": "x" * 70_000}}, InvalidArgument),
        ({"id": "1\r\nNats-Rollup: all"}, InvalidArgument),
        ({"actor": "policy:replicate"}, PermissionDenied),
        ({"actor": ""}, InvalidArgument),
    ],
)
async def test_what_is_refused(rig, changes, error):
    with pytest.raises(error):
        await emit(rig, changes.pop("topic", "a"), **changes)
    assert await rig.log.last_seq() == 0


async def test_topics_are_bounded(rig, monkeypatch):
    monkeypatch.setattr(admission, "TOPICS_MAX", 1)
    await rig.follower.wait_for((await emit(rig, "a", 1)).seq, 1.0)
    with pytest.raises(OutOfCapacity, match="topics") as refused:
        await emit(rig, "b", 2)
    assert not refused.value.retryable
    await emit(rig, "a", 3)


async def test_nothing_is_emitted_into_a_log_that_is_refused(rig):
    rig.progress.refusal = Corrupt("The log is another one.")
    with pytest.raises(Unavailable, match="another one"):
        await emit(rig, "a")


@pytest.mark.parametrize("changes", [{"pattern": "a b"}, {"limit": 0}])
async def test_questions_that_make_no_sense(rig, changes):
    with pytest.raises(InvalidArgument):
        await topics(rig, **changes)


async def test_a_read_includes_what_its_caller_has_emitted(rig):
    done = await emit(rig, "a")
    assert [one.seq for one in await topics(rig, after=Seq(done.seq))] == [done.seq]
