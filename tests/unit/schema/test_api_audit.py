"""What is asked and answered about the record keeps its JSON."""

import msgspec

from tensorcast.schema.api_audit import BadEvent, RawEvent, VerifyInfo
from tensorcast.schema.ids import Seq


def test_the_verdict_has_its_public_shape():
    good = VerifyInfo(ok=True, events=3, head="ab")
    assert msgspec.to_builtins(good) == {
        "ok": True,
        "events": 3,
        "head": "ab",
        "first_bad": None,
        "anchors": 0,
    }
    bad = VerifyInfo(ok=False, events=3, head="", first_bad=BadEvent(seq=Seq(4), reason="missing"))
    assert msgspec.to_builtins(bad)["first_bad"] == {"seq": 4, "reason": "missing"}


def test_bytes_of_an_event_travel_unchanged():
    event = RawEvent(log_epoch=1, seq=Seq(1), subject="s", payload=b"\0\xff{}\n", hash="")
    assert msgspec.json.decode(msgspec.json.encode(event), type=RawEvent) == event
