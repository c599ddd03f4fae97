"""History by pages, and what names a moment."""

import asyncio
from datetime import UTC, datetime

import msgspec
import pytest

from samples import BEGIN, event_id
from tensorcast.client.past import AsyncHistory, AsyncPast, AsyncPastCalls
from tensorcast.client.past_sync import History
from tensorcast.client.past_verbs import split_when
from tensorcast.client.portal import Portal
from tensorcast.schema.api import AuditQuery, EventInfo
from tensorcast.schema.api_past import MomentInfo
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.ids import Seq

PAGE = 4


class Api:
    """A log of events that answers in pages of four."""

    def __init__(self, count: int) -> None:
        self.queries: list[AuditQuery] = []
        self.events = [
            EventInfo(
                seq=Seq(seq),
                id=event_id(seq),
                type="t",
                v=1,
                at=BEGIN,
                actor="a",
                cause=None,
                data=msgspec.Raw(b'{"n": %d}' % seq),
            )
            for seq in range(1, count + 1)
        ]

    async def audit_page(self, query: AuditQuery) -> tuple[EventInfo, ...]:
        self.queries.append(query)
        found = [
            one
            for one in self.events
            if one.seq > query.since and (query.before is None or one.seq < query.before)
        ]
        return tuple(found[: min(PAGE, query.limit)])

    async def moment(self, when) -> MomentInfo:
        return MomentInfo(seq=Seq(3), at=BEGIN, last_seq=Seq(9))


class Calls(AsyncPastCalls):
    def __init__(self, api: Api) -> None:
        self.api = api


@pytest.mark.parametrize(
    ("asked", "seqs"),
    [
        ({}, range(1, 11)),
        ({"limit": 5}, range(1, 6)),
        ({"limit": 0}, []),
        ({"after": 3}, range(4, 11)),
        ({"after": 3, "until": 9}, range(4, 10)),
        ({"after": 0, "until": 0}, []),
    ],
)
async def test_all_that_match_come_page_by_page(asked, seqs):
    api = Api(10)
    history = Calls(api).history(**asked)
    found = [event.seq async for event in history]
    assert found == list(seqs)
    if found:
        assert history.cursor == found[-1]
        assert len(api.queries) <= len(found) // PAGE + 2


async def test_conditions_reach_the_control_plane():
    api = Api(0)
    moment = datetime(2030, 1, 2, tzinfo=UTC)
    history = Calls(api).history(
        artifact="k",
        node="n1",
        key="k",
        operation="op-1",
        engine="e",
        actor="user:*",
        types="replica.*",
        after=moment,
        until=moment,
    )
    assert [event async for event in history] == []
    query = api.queries[0]
    assert (query.artifact, query.node, query.key, query.engine) == ("k", "n1", "k", "e")
    assert (query.operation, query.actor, query.types) == ("op-1", "user:*", ("replica.*",))
    assert (query.time_from, query.time_to, query.since, query.before) == (moment, moment, 0, None)


def test_the_same_for_programs_that_wait():
    portal = Portal()
    history = History(portal, AsyncHistory(Api(10), AuditQuery(limit=1 << 60)))
    assert next(history).fields == {"n": 1}
    assert history.cursor == 1
    assert [event.seq for event in history] == list(range(2, 11))
    assert list(history) == []
    portal.close()


def test_what_names_a_moment():
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    assert split_when(None) == (None, None)
    assert split_when(7) == (7, None)
    assert split_when(moment) == (None, moment)
    assert split_when(moment.timestamp()) == (None, moment)
    for wrong in (True, "7", datetime(2030, 1, 1), float("nan")):
        with pytest.raises(InvalidArgument):
            split_when(wrong)


def test_the_time_of_a_moment():
    later = datetime(2030, 6, 1, tzinfo=UTC)
    past = asyncio.run(Calls(Api(0)).at(3))
    assert (past.seq, past.time) == (3, BEGIN)
    assert asyncio.run(Calls(Api(0)).at(later)).time == later
    assert repr(past) == "<AsyncPast after event 3>"
    nothing = AsyncPast(Api(0), MomentInfo(seq=Seq(0), at=None, last_seq=Seq(0)), None)
    with pytest.raises(InvalidArgument, match="Nothing had happened"):
        asyncio.run(nothing.weights_of("e"))
