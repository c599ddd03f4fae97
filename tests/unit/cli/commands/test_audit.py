from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from cli_samples import ART, OPERATION, Tcctl, event, node
from samples import BEGIN
from tensorcast.cli.commands import audit as audit_command
from tensorcast.schema.api import AuditQuery
from tensorcast.schema.api_past import WhyInfo
from tensorcast.schema.errors import NotFound

REQUEST = {"artifact": ART, "nodes": ["n2"], "tier": "dram"}
STARTED = {"operation": OPERATION, "epoch": 1, "attempt": 1}
ISSUED = {
    "operation": OPERATION,
    "node": "n2",
    "work": {"kind": "materialize", "artifact": ART},
    "policy": "replicate",
}
EVENTS = (
    event(5, "artifact.replicas_requested", REQUEST),
    event(6, "operation.issued", ISSUED, cause=5),
    event(7, "operation.started", STARTED, cause=6),
)


def read(query: AuditQuery) -> tuple[object, ...]:
    return tuple(one for one in EVENTS if one.seq > query.since)[: query.limit]


def test_every_filter_reaches_the_control_plane(tcctl: Tcctl) -> None:
    api = tcctl.answer(audit=(), node=node())
    line = "audit log --artifact m --node n1 --actor user:ada@desk --type key.moved --after 3"
    line += " --type replica.* --key k --operation op-1 --engine e1"
    tcctl(*line.split(), "--from", "1h", "--to", "2030-01-01T00:00:00Z", "--limit", "7")
    assert api.calls[0][:2] == ("node", ("n1",))
    (query,) = api.calls[1][1]
    assert query == AuditQuery(
        artifact="m",
        node="n1",
        actor="user:ada@desk",
        types=("key.moved", "replica.*"),
        key="k",
        operation="op-1",
        engine="e1",
        time_from=BEGIN + timedelta(minutes=10, hours=-1),
        time_to=BEGIN,
        since=3,
        limit=7,
    )


def test_what_cannot_be_is_told(tcctl: Tcctl) -> None:
    tcctl.answer(audit=(), node=NotFound("There is no node 'n9'."))
    assert tcctl("audit", "log", "--node", "n9").code == 3
    run = tcctl("audit", "log", "--type", "bogus.type")
    assert run.code == 2
    assert "replica.ready" in run.err
    assert tcctl("audit", "log", "--type", "replica.*").code == 0


def test_the_last_ones(tcctl: Tcctl) -> None:
    api = tcctl.answer(audit=EVENTS[1:])
    assert len(tcctl("audit", "log", "--last", "2", "-o", "json").data) == 2
    (query,) = api.calls[0][1]
    assert (query.newest, query.limit) == (True, 2)


def test_the_last_ones_are_followed_by_those_that_come(
    tcctl: Tcctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_command, "FOLLOW_S", 0.0)
    calls = []

    def answer(query: AuditQuery) -> tuple[object, ...]:
        calls.append(query)
        if query.newest:
            return EVENTS[1:2]
        return EVENTS[2:] if query.since == 6 and len(calls) > 3 else ()

    tcctl.answer(audit=answer)
    run = tcctl("audit", "log", "--last", "1", "--follow", "--limit", "2", "-o", "ndjson")
    assert [msgspec.json.decode(line)["seq"] for line in run.out.splitlines()] == [6, 7]


def test_none_of_the_last_ones(tcctl: Tcctl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_command, "FOLLOW_S", 0.0)
    tcctl.answer(audit=lambda query: EVENTS[1:2] if query.newest else EVENTS[2:])
    assert tcctl("audit", "log", "--last", "0", "-o", "json").data == []
    run = tcctl("audit", "log", "--last", "0", "--follow", "--limit", "1", "-o", "ndjson")
    assert [msgspec.json.decode(line)["seq"] for line in run.out.splitlines()] == [7]


def test_ndjson_streams(tcctl: Tcctl) -> None:
    tcctl.answer(audit=read)
    lines = tcctl("audit", "log", "-o", "ndjson").out.splitlines()
    assert [msgspec.json.decode(line)["seq"] for line in lines] == [5, 6, 7]


def test_the_table_names_causes(tcctl: Tcctl) -> None:
    tcctl.answer(audit=read)
    assert tcctl("audit", "log").out.splitlines()[-1].endswith(" #6")


def test_the_next_cursor_is_told(tcctl: Tcctl) -> None:
    tcctl.answer(audit=read)
    assert tcctl("audit", "log", "--limit", "2").out.splitlines()[-1].endswith("--after 6")
    again = tcctl("audit", "log", "--limit", "2", "--after", "6").out
    assert again.splitlines()[-1].startswith("  7")
    assert "--after" not in again
    assert len(tcctl("audit", "log", "--limit", "2", "-o", "json").data) == 2


def test_the_chain_of_an_event_begins_with_who_asked(tcctl: Tcctl) -> None:
    api = tcctl.answer(why=WhyInfo(event=EVENTS[2], causes=EVENTS[:2], effects=()))
    data = tcctl("audit", "log", "--chain", "7", "-o", "json").data
    assert [one["seq"] for one in data] == [5, 6, 7]
    assert api.calls == [("why", ("7",), {"limit": 0})]
    text = tcctl("audit", "log", "--chain", "7").out
    assert "Policy replicate answered" in text


def test_the_chain_of_an_unknown_event_is_exit_3(tcctl: Tcctl) -> None:
    tcctl.answer(why=NotFound("There is no event 99."))
    assert tcctl("audit", "log", "--chain", "99").code == 3


def test_why_shows_the_tree(tcctl: Tcctl) -> None:
    info = WhyInfo(event=EVENTS[1], causes=EVENTS[:1], effects=EVENTS[2:], more=True)
    api = tcctl.answer(why=info)
    run = tcctl("audit", "why", "--artifact", "m", "--node", "n2", "--tier", "dram")
    assert api.calls[0] == (
        "why",
        (None,),
        {"artifact": "m", "node": "n2", "tier": "dram", "limit": 100},
    )
    lines = run.out.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["5", "6", "7"]
    assert "because policy replicate reacted to artifact.replicas_requested" in run.out
    assert "more effects" in run.out
    data = tcctl("audit", "why", "6", "-o", "json").data
    assert (data["event"]["seq"], len(data["causes"]), len(data["effects"])) == (6, 1, 1)


@pytest.mark.parametrize(
    "line", ["", "6 --artifact m --node n1", "--artifact m", "6 --node n1", "--node n1"]
)
def test_why_needs_an_event_or_a_place(tcctl: Tcctl, line: str) -> None:
    assert tcctl("audit", "why", *line.split()).code == 2


def test_why_refuses_a_tier_that_is_none(tcctl: Tcctl) -> None:
    done = tcctl("audit", "why", "--artifact", "m@1", "--node", "n2", "--tier", "foo")
    assert done.code == 2
    assert "'foo' is no tier. Use one of" in done.err


@pytest.mark.parametrize("options", [(), ("--last", "2")])
def test_who_follows_up_to_a_moment_that_is_over_is_done(
    tcctl: Tcctl, options: tuple[str, ...]
) -> None:
    """It does not wait for events that cannot come."""
    tcctl.answer(audit=read)
    run = tcctl("audit", "log", "--follow", "--to", "1m", *options, "-o", "json")
    assert (run.code, len(run.data)) == (0, 3)


def test_a_moment_is_over_when_nothing_of_it_can_be_late() -> None:
    second = timedelta(seconds=1)
    assert not audit_command.is_over(None, BEGIN)
    assert not audit_command.is_over(BEGIN + second, BEGIN)
    assert not audit_command.is_over(BEGIN - second, BEGIN)
    assert audit_command.is_over(BEGIN - 3 * second, BEGIN)
