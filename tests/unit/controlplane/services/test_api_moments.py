"""Spans of the past that can hold nothing are refused in a sentence: over a log in memory."""

from datetime import datetime, timedelta

import msgspec
import pytest

from rigs import running_rig
from samples import artifact_id
from tensorcast.controlplane.services.api import answer
from tensorcast.log.identity import now
from tensorcast.schema.api import AuditQuery, EventInfo, parse_reply
from tensorcast.schema.api_past import DiffInfo, DiffQuery
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.ids import Seq
from worlds import World


@pytest.fixture
async def rig():
    """1 node n1, 2 a, 3 its replica on n1."""
    world = World()
    world.node("n1")
    world.artifact("a", "n1")
    async with running_rig() as rig:
        await rig.replay(world.events)
        yield rig


async def ask(rig, verb, request, shape):
    return parse_reply(await answer(rig.desk, verb, msgspec.json.encode(request)), shape)


@pytest.mark.parametrize("verb", ["audit.log", "artifact.history"])
@pytest.mark.parametrize(
    ("span", "words"),
    [
        ({"time_from": timedelta(hours=1)}, "is yet to come"),
        ({"time_from": timedelta(hours=-1), "time_to": timedelta(hours=-2)}, "is after the last"),
        ({"since": Seq(4)}, "no event 4 yet. The last one is 3"),
    ],
)
async def test_a_span_that_can_hold_nothing_is_refused(rig, verb, span, words):
    placed = {k: now() + v if isinstance(v, timedelta) else v for k, v in span.items()}
    query = AuditQuery(artifact=artifact_id("a"), **placed)
    with pytest.raises(InvalidArgument, match=words):
        await ask(rig, verb, query, object)


async def test_a_span_may_end_later_than_now(rig):
    query = AuditQuery(time_from=now() - timedelta(days=1), time_to=now() + timedelta(days=1))
    await ask(rig, "audit.log", query, tuple[EventInfo, ...])
    last = AuditQuery(since=Seq(3))
    assert await ask(rig, "audit.log", last, tuple[EventInfo, ...]) == ()


async def test_a_time_without_a_zone_is_refused(rig):
    query = AuditQuery(time_from=datetime(2026, 1, 1))
    with pytest.raises(InvalidArgument, match="no zone"):
        await ask(rig, "audit.log", query, object)


async def test_times_that_stand_the_wrong_way_round_are_no_difference(rig):
    """Also where both stand for the same event, as before the first one."""
    early, earlier = now() - timedelta(days=1), now() - timedelta(days=2)
    with pytest.raises(InvalidArgument, match="Give the earlier one first"):
        await ask(rig, "diff", DiffQuery(since_time=early, to_time=earlier), DiffInfo)
    same = await ask(rig, "diff", DiffQuery(since_time=earlier, to_time=early), DiffInfo)
    assert same.total == 0
