"""What an event says to people, and how causes are named."""

from __future__ import annotations

import msgspec
import pytest

from cli_samples import ART, OPERATION, event, event_name
from samples import manifest
from tensorcast.cli.events import (
    Namer,
    describe_event,
    event_flow,
    name_issuer,
    subject_of,
    table_chain,
    table_events,
)

REPLICA = f"{ART}:n2:dram"
SHORT = ART[:12]
WORK = {"kind": "materialize", "artifact": ART}


@pytest.mark.parametrize(
    ("kind", "data", "about", "what"),
    [
        (
            "artifact.sealed",
            {"artifact": ART, "kind": "weights", "manifest": manifest(4)},
            SHORT,
            "weights, 1 tensor, 4.0 MiB",
        ),
        (
            "artifact.replicas_requested",
            {"artifact": ART, "nodes": ["n2", "n3"], "tier": "dram"},
            SHORT,
            "dram of n2, n3",
        ),
        ("artifact.pinned", {"artifact": ART}, SHORT, ""),
        (
            "key.moved",
            {"key": "k", "artifact": ART, "previous": None, "version": 1},
            "k",
            f"to {SHORT}",
        ),
        ("key.removed", {"key": "k", "previous": ART, "version": 2}, "k", f"was {SHORT}"),
        (
            "replica.filled",
            {"replica": REPLICA, "epoch": 1, "chunks": {"ranges": [[0, 3], [5, 6]]}},
            f"{SHORT} n2/dram",
            "4 chunks more",
        ),
        (
            "replica.lost",
            {"replica": REPLICA, "epoch": 1, "detail": "the disk is empty"},
            f"{SHORT} n2/dram",
            "the disk is empty",
        ),
        (
            "operation.issued",
            {"operation": OPERATION, "node": "n2", "work": WORK, "policy": "replicate"},
            OPERATION[:15],
            f"materialize {SHORT} on n2 (policy replicate)",
        ),
        (
            "operation.failed",
            {
                "operation": OPERATION,
                "epoch": 1,
                "fault": {"kind": "unavailable", "detail": "no source"},
            },
            OPERATION[:15],
            "unavailable: no source",
        ),
        ("node.lost", {"node": "n2", "epoch": 1, "silent_s": 5.25}, "n2", "silent for 5.2 s"),
        ("node.cordoned", {"node": "n2"}, "n2", ""),
        (
            "lease.acquired",
            {"lease": "l1", "artifact": ART, "node": "n1", "holder": "me", "ttl_s": 5},
            "l1",
            f"{SHORT} on n1 for me",
        ),
        (
            "engine.registered",
            {
                "engine": "e1",
                "life": "l",
                "kind": "vllm",
                "node": "n1",
                "model": "m",
                "url": "http://h:1",
                "ttl_s": 15,
            },
            "e1",
            "vllm on n1 at http://h:1",
        ),
        (
            "engine.serving",
            {
                "engine": "e1",
                "life": "l",
                "version": "m@2",
                "artifact": ART,
                "since": "2030-01-01T00:00:00Z",
            },
            "e1",
            f"m@2, {SHORT} since 2030-01-01T00:00:00Z",
        ),
        (
            "engine.lost",
            {"engine": "e1", "life": "l", "last_seen": "2030-01-01T00:00:00Z"},
            "e1",
            "not heard of since 2030-01-01T00:00:00Z",
        ),
        ("engine.left", {"engine": "e1", "life": "l"}, "e1", ""),
        ("planet.moved", {"planet": "x"}, "?", "an event of a newer release"),
    ],
)
def test_an_event_in_words(kind: str, data: dict[str, object], about: str, what: str) -> None:
    assert describe_event(event(1, kind, data)) == (about, what)


def test_the_subject_of_an_event() -> None:
    assert subject_of(event(1, "replica.gone", {"replica": REPLICA, "epoch": 1})) == (
        "replica",
        REPLICA,
    )
    assert subject_of(event(1, "planet.moved", {})) == ("", "")


def test_a_cause_that_was_shown_is_named_by_its_position() -> None:
    first = event(7, "node.cordoned", {"node": "n1"})
    second = event(8, "node.uncordoned", {"node": "n1"}, cause=7)
    stranger = event(9, "node.cordoned", {"node": "n1"}, cause=3)
    table = event_flow(iter(())).table((first, second, stranger))
    assert [row[-1] for row in table.rows] == ["", "#7", event_name(3)]


def test_causes_are_remembered_over_pages() -> None:
    flow = event_flow(iter(()))
    flow.table((event(7, "node.cordoned", {"node": "n1"}),))
    (row,) = flow.table((event(8, "node.uncordoned", {"node": "n1"}, cause=7),)).rows
    assert row[-1] == "#7"


def test_quiet_flows_leave_ids() -> None:
    one = event(7, "node.cordoned", {"node": "n1"})
    assert event_flow(iter(())).brief(one) == one.id


def test_each_row_has_a_cell_for_each_title() -> None:
    events = [event(7, "node.cordoned", {"node": "n1"})]
    for table in (table_events(events, Namer()), table_chain(events)):
        assert all(len(row) == len(table.titles) for row in table.rows)


def test_an_effect_is_indented_under_its_cause() -> None:
    chain = [event(n, "node.cordoned", {"node": "n1"}) for n in (1, 2, 3)]
    assert [row[2] for row in table_chain(chain).rows] == [
        "node.cordoned",
        "  └ node.cordoned",
        "    └ node.cordoned",
    ]


def test_data_is_passed_on_as_it_is() -> None:
    one = event(1, "planet.moved", {"planet": {"x": 1}})
    assert msgspec.json.decode(msgspec.json.encode(one))["data"] == {"planet": {"x": 1}}


def test_a_plan_is_no_policy():
    assert name_issuer("plan-00ff") == "plan plan-00ff"
    assert name_issuer("repair") == "policy repair"
