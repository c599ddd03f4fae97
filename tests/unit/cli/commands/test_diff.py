from __future__ import annotations

from datetime import timedelta

from cli_samples import Tcctl
from samples import BEGIN
from tensorcast.schema.api_past import Change, DiffInfo, FieldChange

INFO = DiffInfo(
    from_seq=3,
    to_seq=9,
    total=2,
    changes=(
        Change(
            kind="node",
            id="n1",
            change="changed",
            fields=(FieldChange(name="cordoned", before=False, after=True),),
            seq=8,
        ),
    ),
)


def test_what_changed_between_two_moments(tcctl: Tcctl) -> None:
    api = tcctl.answer(diff=INFO)
    text = tcctl("diff", "--from", "3", "--to", "9").out
    assert "1 changed, from event 3 to event 9:" in text
    assert "cordoned  false   true" in text
    assert "the last 1 of 2" in text
    assert api.calls[0] == ("diff", (3, 9), {"kind": None, "what": None, "limit": 1000})


def test_the_later_moment_is_now_unless_given(tcctl: Tcctl) -> None:
    api = tcctl.answer(diff=INFO)
    data = tcctl("diff", "--from", "5m", "node", "n1", "--limit", "7", "-o", "json").data
    now = BEGIN + timedelta(minutes=10)
    assert api.calls[0][1] == (now - timedelta(minutes=5), now)
    assert api.calls[0][2] == {"kind": "node", "what": "n1", "limit": 7}
    assert data["changes"][0]["fields"] == [{"name": "cordoned", "before": False, "after": True}]


def test_a_noun_without_an_id_is_wrong_usage(tcctl: Tcctl) -> None:
    assert tcctl("diff", "--from", "1", "node").code == 2
    assert tcctl("diff").code == 2


def test_nothing_is_different(tcctl: Tcctl) -> None:
    tcctl.answer(diff=DiffInfo(from_seq=3, to_seq=3, total=0, changes=()))
    assert "Nothing is different" in tcctl("diff", "--from", "3", "--to", "3").out
