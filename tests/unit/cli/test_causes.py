"""Reading the log page by page, finding one event, and the chain behind it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
import pytest

from cli_samples import ART, OPERATION, event, event_name
from tensorcast.cli import causes
from tensorcast.schema.api import LIST_MAX, AuditQuery, EventInfo
from tensorcast.schema.errors import InvalidArgument, NotFound
from tensorcast.schema.ids import EventId, Seq


class Record:
    """A log in memory that answers as `audit.log` does; counts what it was asked."""

    def __init__(self, events: Sequence[EventInfo]) -> None:
        self.events = list(events)
        self.queries: list[AuditQuery] = []

    def __call__(self, query: AuditQuery) -> tuple[EventInfo, ...]:
        self.queries.append(query)
        found = [
            one
            for one in self.events
            if one.seq > query.since
            and (query.time_from is None or one.at >= query.time_from)
            and (query.time_to is None or one.at <= query.time_to)
        ]
        return tuple(found[-query.limit :] if query.newest else found[: query.limit])


def cordons(count: int) -> list[EventInfo]:
    return [event(seq, "node.cordoned", {"node": "n1"}) for seq in range(1, count + 1)]


@pytest.mark.parametrize(("limit", "count"), [(5, 5), (LIST_MAX, LIST_MAX), (10**9, 2500)])
def test_all_pages_are_read_up_to_the_limit(limit: int, count: int) -> None:
    record = Record(cordons(2500))
    pages = list(causes.read_pages(record, AuditQuery(limit=limit)))
    assert [one.seq for page in pages for one in page] == list(range(1, count + 1))
    assert all(query.limit <= LIST_MAX for query in record.queries)


def test_the_newest_are_one_page() -> None:
    record = Record(cordons(50))
    pages = list(causes.read_pages(record, AuditQuery(limit=3, newest=True)))
    assert [[one.seq for one in page] for page in pages] == [[48, 49, 50]]


def test_following_goes_on_where_the_log_ended() -> None:
    record = Record(cordons(2))
    more = iter([event(3, "node.cordoned", {"node": "n1"})])

    def follow() -> bool:
        new = next(more, None)
        if new:
            record.events.append(new)
        return new is not None

    pages = list(causes.read_pages(record, AuditQuery(limit=100), follow=follow))
    assert [[one.seq for one in page] for page in pages] == [[1, 2], [3]]


def test_an_event_is_found_by_its_position() -> None:
    record = Record(cordons(9))
    assert causes.find_event(record, "4").seq == 4
    assert causes.find_event(record, " #4 ").seq == 4
    for missing in ("0", "10"):
        with pytest.raises(NotFound, match="no event at position"):
            causes.find_event(record, missing)


def test_an_event_is_found_by_an_id_without_a_time() -> None:
    record = Record(cordons(2500))
    assert causes.find_event(record, event_name(2100)).seq == 2100
    with pytest.raises(NotFound, match="no event 0000"):
        causes.find_event(record, event_name(9999))


def test_an_id_with_a_time_is_looked_for_at_that_time_only() -> None:
    at = datetime(2031, 1, 1, tzinfo=UTC)
    stamp = f"{int(at.timestamp() * 1000):012x}"
    wanted = EventId(f"{stamp[:8]}-{stamp[8:]}-7abc-8000-000000000000")
    late = msgspec.structs.replace(cordons(1)[0], seq=Seq(3000), id=wanted, at=at)
    record = Record([*cordons(2500), late])
    assert causes.find_event(record, wanted.upper()) == late
    assert len(record.queries) == 1


@pytest.mark.parametrize("text", ["", "abc", "replica.ready", "-1"])
def test_what_names_no_event_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="neither a position nor the id"):
        causes.find_event(Record([]), text)


def make_chain() -> list[EventInfo]:
    request = {"artifact": ART, "nodes": ["n2"], "tier": "dram"}
    issued = {
        "operation": OPERATION,
        "node": "n2",
        "work": {"kind": "materialize", "artifact": ART},
        "policy": "replicate",
    }
    return [
        event(5, "artifact.replicas_requested", request),
        event(6, "operation.issued", issued, cause=5),
        event(7, "operation.started", {"operation": OPERATION, "epoch": 1, "attempt": 1}, cause=6),
    ]


def test_the_chain_of_causes_begins_at_its_root() -> None:
    events = make_chain()
    known = {one.id: one for one in events}
    assert causes.trace_causes(events[-1], known.get) == tuple(events)


def test_a_chain_ends_where_a_cause_is_missing_or_the_limit_is_reached() -> None:
    events = make_chain()
    assert causes.trace_causes(events[-1], lambda _: None) == (events[-1],)
    circle = event(1, "node.cordoned", {"node": "n1"}, cause=1)
    assert len(causes.trace_causes(circle, lambda _: circle)) == causes.CHAIN_MAX


def test_a_chain_in_a_sentence() -> None:
    text = causes.explain_chain(make_chain())
    assert "began with artifact.replicas_requested by user:ada@desk" in text
    assert "Policy replicate answered" in text
    assert "Policy" not in causes.explain_chain(make_chain()[:1])
