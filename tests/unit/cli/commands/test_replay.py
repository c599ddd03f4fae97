from __future__ import annotations

from datetime import timedelta

import pytest

from cli_samples import Tcctl, artifact, event, node
from samples import BEGIN
from tensorcast.schema.api import ReplayInfo, ReplayQuery
from tensorcast.schema.ids import Seq

CORDONED = event(4, "node.cordoned", {"node": "n1"})
STATE = ReplayInfo(at_seq=Seq(4), artifacts=(artifact(),), keys=(), nodes=(node(),), operations=())


def test_the_state_has_the_fields_of_the_interface(tcctl: Tcctl) -> None:
    api = tcctl.answer(replay=STATE, audit=(CORDONED,))
    data = tcctl("replay", "--to", "4", "-o", "json").data
    assert set(data) >= {"at_seq", "artifacts", "nodes", "operations", "plans"}
    assert api.calls[0][1] == (ReplayQuery(to_seq=Seq(4)),)


def test_to_a_time_and_about_one_thing(tcctl: Tcctl) -> None:
    api = tcctl.answer(replay=STATE, audit=(CORDONED,))
    assert tcctl("replay", "--to", "5m", "node", "n1").code == 0
    moment = BEGIN + timedelta(minutes=5)
    assert api.calls[0][1] == (ReplayQuery(to_time=moment, kind="node", what="n1"),)


def test_a_noun_without_an_id_is_wrong_usage(tcctl: Tcctl) -> None:
    assert tcctl("replay", "--to", "4", "node").code == 2
    assert tcctl("replay", "--to", "4", "galaxy", "x").code == 2


@pytest.mark.parametrize(("to", "age"), [("4", "4s"), ("8m", "2m")])
def test_ages_are_as_they_were_then(tcctl: Tcctl, to: str, age: str) -> None:
    """Event 4 came 4 s after the artifact, it is 10 minutes now."""
    tcctl.answer(replay=STATE, audit=(CORDONED,))
    lines = tcctl("replay", "--to", to).out.splitlines()
    assert next(line for line in lines if "llama@1" in line).endswith(age)


def test_people_see_what_there_was(tcctl: Tcctl) -> None:
    tcctl.answer(replay=STATE, audit=(CORDONED,))
    text = tcctl("replay", "--to", "4").out
    assert "The state after event 4" in text
    assert "Artifacts" in text
    assert "Operations" not in text
    tcctl.answer(replay=ReplayInfo(at_seq=Seq(0), artifacts=(), keys=(), nodes=(), operations=()))
    assert "Nothing was there" in tcctl("replay", "--to", "0").out
