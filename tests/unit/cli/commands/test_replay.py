from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from cli_samples import Answers, Tcctl, artifact, event, node
from samples import BEGIN
from tensorcast.schema.api import AuditQuery, ReplayInfo, ReplayQuery
from tensorcast.schema.api_past import Change, DiffInfo, FieldChange, MomentInfo
from tensorcast.schema.ids import Seq

CORDONED = event(4, "node.cordoned", {"node": "n1"})
STATE = ReplayInfo(
    at_seq=Seq(4),
    artifacts=(artifact(),),
    keys=(),
    nodes=(node(),),
    operations=(),
    at=CORDONED.at,
    last_seq=Seq(9),
    totals={"artifacts": 7, "nodes": 1},
)


def test_the_state_has_the_fields_of_the_interface(tcctl: Tcctl) -> None:
    api = tcctl.answer(replay=STATE)
    data = tcctl("replay", "--to", "4", "-o", "json").data
    assert set(data) >= {"at_seq", "artifacts", "nodes", "operations", "plans"}
    assert api.calls[0][1] == (ReplayQuery(to_seq=Seq(4)),)


def test_to_a_time_and_about_one_thing(tcctl: Tcctl) -> None:
    api = tcctl.answer(replay=STATE)
    assert tcctl("replay", "--to", "5m", "node", "n1").code == 0
    moment = BEGIN + timedelta(minutes=5)
    assert api.calls[0][1] == (ReplayQuery(to_time=moment, kind="node", what="n1"),)


def test_a_noun_without_an_id_is_wrong_usage(tcctl: Tcctl) -> None:
    assert tcctl("replay", "--to", "4", "node").code == 2
    assert tcctl("replay", "--to", "4", "galaxy", "x").code == 2


@pytest.mark.parametrize(("to", "age"), [("4", "4s"), ("8m", "2m")])
def test_ages_are_as_they_were_then(tcctl: Tcctl, to: str, age: str) -> None:
    """Event 4 came 4 s after the artifact, it is 10 minutes now."""
    tcctl.answer(replay=STATE)
    lines = tcctl("replay", "--to", to).out.splitlines()
    assert next(line for line in lines if "llama@1" in line).endswith(age)


def test_people_see_what_there_was(tcctl: Tcctl) -> None:
    tcctl.answer(replay=STATE)
    text = tcctl("replay", "--to", "4").out
    assert "The state after event 4" in text
    assert "Artifacts (the 1 that changed last, of 7)" in text
    assert "Nodes\n" in text
    assert "the present" not in text
    assert "Operations" not in text
    tcctl.answer(replay=ReplayInfo(at_seq=Seq(0), artifacts=(), keys=(), nodes=(), operations=()))
    assert "Nothing was there" in tcctl("replay", "--to", "0").out


def test_the_present_is_said_to_be_it(tcctl: Tcctl) -> None:
    tcctl.answer(replay=msgspec.structs.replace(STATE, last_seq=Seq(4)))
    assert "this is the present" in tcctl("replay", "--to", "4").out


# ---- step by step ------------------------------------------------------------------------------

EVENTS = tuple(event(seq, "node.cordoned", {"node": f"n{seq}"}) for seq in range(1, 7))


def walkable(tcctl: Tcctl) -> Answers:
    def audit(query: AuditQuery) -> tuple[object, ...]:
        found = [
            one
            for one in EVENTS
            if one.seq > query.since and (query.before is None or one.seq < query.before)
        ]
        return tuple(found[-1:] if query.newest else found[:1])

    def diff(since: int, to: int) -> DiffInfo:
        field = FieldChange(name="cordoned", before=False, after=True)
        change = Change(kind="node", id=f"n{to}", change="changed", fields=(field,), seq=to)
        return DiffInfo(from_seq=since, to_seq=to, total=1, changes=(change,))

    def moment(when: object) -> MomentInfo:
        return MomentInfo(seq=when if isinstance(when, int) else 2, at=BEGIN, last_seq=6)

    return tcctl.answer(audit=audit, diff=diff, moment=moment)


def test_a_pipe_gets_every_event_from_there_on(tcctl: Tcctl) -> None:
    walkable(tcctl)
    lines = tcctl("replay", "--to", "3", "--step", "-o", "ndjson").out.splitlines()
    steps = [msgspec.json.decode(line) for line in lines]
    assert [step["event"]["seq"] for step in steps] == [3, 4, 5, 6]
    assert steps[0]["changes"][0]["fields"][0]["after"] is True
    assert tcctl("replay", "--to", "3", "--step", "--steps", "2", "-q").out == "3\n4\n"
    assert tcctl("replay", "--to", "3", "--steps", "2", "-q").out == "3\n4\n"  # that is a walk
    assert "~node: cordoned false → true" in tcctl("replay", "--to", "8m", "--step").out


def test_a_person_walks_forward_and_back(tcctl: Tcctl) -> None:
    walkable(tcctl)
    tcctl.is_terminal, tcctl.typed = True, "\n\nb\nwhat?\ng 6\nn\nb\nq\n"
    run = tcctl("replay", "--to", "2", "--step", "-q", "--no-color")
    assert run.out.split() == ["2", "3", "4", "3", "6", "5"]
    assert run.err.count("[Enter] next") == 8


def test_the_end_of_what_is_typed_ends_the_walk(tcctl: Tcctl) -> None:
    walkable(tcctl)
    tcctl.is_terminal = True
    assert tcctl("replay", "--to", "2", "--step", "-q").out.split() == ["2"]


def test_a_walk_about_one_thing(tcctl: Tcctl) -> None:
    api = walkable(tcctl)
    nouns = (("node", "n1"), ("key", "k"), ("operation", "op-1"), ("engine", "e"), ("plan", "p"))
    for noun, name in nouns:
        assert tcctl("replay", "--to", "3", "--step", "--steps", "1", noun, name).code == 0
        assert getattr(api.calls[-2][1][0], noun) == name
