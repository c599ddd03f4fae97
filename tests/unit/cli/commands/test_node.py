from __future__ import annotations

import pytest

from cli_samples import Tcctl, node
from tensorcast.schema.errors import NotFound


def test_ls_has_the_fields_of_the_interface(tcctl: Tcctl) -> None:
    tcctl.answer(nodes=(node("n1"), node("n2", state="lost")))
    data = tcctl("node", "ls", "-o", "json").data
    assert set(data[0]) >= {"node", "epoch", "state", "tiers", "transports", "replicas"}
    assert data[0]["tiers"] == {"dram": {"capacity": 1 << 30, "used": 3 << 20}}
    assert tcctl("node", "ls", "-q").out == "n1\nn2\n"


def test_show(tcctl: Tcctl) -> None:
    tcctl.answer(node=node())
    assert "127.0.0.1:4000" in tcctl("node", "show", "n1").out


@pytest.mark.parametrize("verb", ["cordon", "drain", "uncordon"])
def test_changes_answer_with_the_node_as_it_is_now(tcctl: Tcctl, verb: str) -> None:
    api = tcctl.answer(**{verb: None}, node=node())
    assert tcctl("node", verb, "n1", "-o", "json").data["node"] == "n1"
    assert [name for name, _, _ in api.calls] == [verb, "node"]


def test_an_unknown_node_is_exit_3(tcctl: Tcctl) -> None:
    tcctl.answer(drain=NotFound("There is no node 'n9'."))
    assert tcctl("node", "drain", "n9").code == 3
