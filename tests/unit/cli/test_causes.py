"""Reading the log page by page, and the tree of causes and effects."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cli_samples import ART, OPERATION, event
from tensorcast.cli import causes
from tensorcast.schema.api import LIST_MAX, AuditQuery, EventInfo
from tensorcast.schema.api_past import WhyInfo


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


def test_a_chain_in_a_sentence() -> None:
    text = causes.explain_chain(make_chain())
    assert "began with artifact.replicas_requested by user:ada@desk" in text
    assert "Policy replicate answered" in text
    assert "Policy" not in causes.explain_chain(make_chain()[:1])


def make_why(at: int, *, effects: int = 0) -> WhyInfo:
    """The chain with event number `at` in the middle, and what came of it."""
    chain = make_chain()
    more = [event(seq, "node.cordoned", {"node": "n1"}, cause=7) for seq in range(8, 8 + effects)]
    return WhyInfo(event=chain[at], causes=tuple(chain[:at]), effects=(*chain[at + 1 :], *more))


def test_the_tree_has_causes_above_and_effects_below() -> None:
    table = causes.table_why(make_why(1, effects=2))
    assert [row[0] for row in table.rows] == ["5", "6", "7", "8", "9"]
    assert [row[2] for row in table.rows] == [
        "artifact.replicas_requested",
        "  └ operation.issued ◀",
        "    └ operation.started",
        "      └ node.cordoned",
        "      └ node.cordoned",
    ]


def test_an_effect_that_names_no_known_cause_is_left_out_and_circles_end() -> None:
    one = event(1, "node.cordoned", {"node": "n1"}, cause=2)
    other = event(2, "node.cordoned", {"node": "n1"}, cause=1)
    stray = event(3, "node.cordoned", {"node": "n1"}, cause=99)
    info = WhyInfo(event=one, causes=(), effects=(other, stray))
    assert causes.walk_effects(info, 0) == [(1, other)]


def test_a_reason_in_a_sentence() -> None:
    ready = event(8, "replica.ready", READY, cause=7)
    info = WhyInfo(event=ready, causes=tuple(make_chain()), effects=())
    text = causes.explain_why(info)
    assert text.startswith(
        f"Replica {ART[:12]} exists on n2 (dram) because policy replicate reacted"
    )
    assert "artifact.replicas_requested of user:ada@desk (#5, " in text
    alone = WhyInfo(event=event(8, "replica.ready", READY), causes=(), effects=())
    assert "because user:ada@desk did so" in causes.explain_why(alone)
    unknown = WhyInfo(event=event(9, "comet.passed", {}), causes=(), effects=())
    assert "comet.passed" in causes.explain_why(unknown)


READY = {
    "replica": f"{ART}:n2:dram",
    "artifact": ART,
    "node": "n2",
    "tier": "dram",
    "epoch": 1,
    "chunks_total": 3,
}
