from __future__ import annotations

from cli_samples import Tcctl, event
from samples import BEGIN
from tensorcast.schema.api_store import DeadLetter, DeadPage
from tensorcast.schema.ids import Seq

LETTER = DeadLetter(
    log="log",
    seq=Seq(7),
    kind="node",
    id="n1",
    type="unreadable",
    fault="unreadable",
    reason="its bytes are no event",
    parked_at=BEGIN,
)
EVENT = event(7, "node.cordoned", {"node": "n1"})
PAGE = DeadPage(letters=(LETTER,), total=1)


def test_ls_lists_what_is_parked(tcctl: Tcctl) -> None:
    tcctl.answer(dead_letters=PAGE)
    assert tcctl("audit", "dead", "ls", "-q").out == "7\n"
    shown = tcctl("audit", "dead", "ls").out
    assert "node n1" in shown
    assert "1 event is parked." in shown
    tcctl.answer(dead_letters=DeadPage(letters=(), total=0))
    assert tcctl("audit", "dead", "ls").out == "No event is parked.\n"


def test_show_tells_the_event_too(tcctl: Tcctl) -> None:
    tcctl.answer(dead_letters=PAGE, audit=(EVENT,))
    shown = tcctl("audit", "dead", "show", "7", "-o", "json").data
    assert shown["letters"][0]["seq"] == 7
    assert shown["event"]["id"] == EVENT.id
    assert EVENT.actor in tcctl("audit", "dead", "show", "7").out
    tcctl.answer(dead_letters=DeadPage(letters=(), total=0))
    missing = tcctl("audit", "dead", "show", "8", "-o", "json")
    assert missing.error["code"] == "not_found"


def test_retry_fails_while_something_waits(tcctl: Tcctl) -> None:
    tcctl.answer(retry_dead_letters=PAGE)
    assert tcctl("audit", "dead", "retry").code == 1
    tcctl.answer(retry_dead_letters=DeadPage(letters=(), total=0))
    assert tcctl("audit", "dead", "retry").code == 0
