from __future__ import annotations

from cli_samples import ART, Tcctl, artifact
from samples import BEGIN
from tensorcast.schema.api import KeyInfo, KeyMove
from tensorcast.schema.errors import Conflict
from tensorcast.schema.ids import Key, Seq

INFO = KeyInfo(
    key=Key("llama@1"),
    artifact=ART,
    version=1,
    history=(KeyMove(artifact=ART, at=BEGIN, actor="user:ada@desk", seq=Seq(3)),),
)


def test_show_has_the_fields_of_the_interface(tcctl: Tcctl) -> None:
    tcctl.answer(key=INFO)
    data = tcctl("key", "show", "llama@1", "-o", "json").data
    assert set(data) >= {"key", "artifact", "version", "history"}
    assert set(data["history"][0]) == {"artifact", "at", "actor", "seq"}
    assert tcctl("key", "show", "llama@1", "-q").out == f"{ART}\n"


def test_ls(tcctl: Tcctl) -> None:
    tcctl.answer(keys=(INFO,))
    line = {"key": "llama@1", "artifact": ART, "version": 1}  # no history: show has it
    assert tcctl("key", "ls", "-o", "json").data == [line]
    assert tcctl("key", "ls", "-q").out == "llama@1\n"
    assert ART[:12] in tcctl("key", "ls").out


def test_set_expects_what_an_abbreviation_stands_for(tcctl: Tcctl) -> None:
    api = tcctl.answer(artifact=artifact(), move_key=None, key=INFO)
    run = tcctl("key", "set", "llama@1", "abcdef12", "--expect", ART[:12])
    assert run.code == 0
    assert api.calls[:2] == [
        ("artifact", (ART[:12],), {}),
        ("move_key", ("llama@1", "abcdef12"), {"expect": ART}),
    ]


def test_set_of_a_key_that_moved_is_a_conflict(tcctl: Tcctl) -> None:
    tcctl.answer(move_key=Conflict("It points elsewhere."))
    assert tcctl("key", "set", "llama@1", ART).code == 4


def test_rm(tcctl: Tcctl) -> None:
    api = tcctl.answer(remove_key=None, key=INFO)
    run = tcctl("key", "rm", "llama@1", "-o", "json")
    assert (run.code, run.data["artifact"], run.data["version"]) == (0, None, 2)
    assert api.calls[1] == ("remove_key", ("llama@1",), {"expect": None})
