"""What is asked and answered about the record keeps its JSON."""

import base64
import random

import msgspec
import pytest

from tensorcast.schema.api_audit import BadEvent, RawEvent, VerifyInfo, pack, unpack
from tensorcast.schema.codec import EVENT_BYTES_MAX
from tensorcast.schema.errors import Corrupt
from tensorcast.schema.ids import Seq


def test_the_verdict_has_its_public_shape():
    good = VerifyInfo(ok=True, events=3, head="ab")
    assert msgspec.to_builtins(good) == {
        "ok": True,
        "events": 3,
        "head": "ab",
        "first_bad": None,
        "anchors": 0,
        "strange_key": None,
    }
    bad = VerifyInfo(ok=False, events=3, head="", first_bad=BadEvent(seq=Seq(4), reason="missing"))
    assert msgspec.to_builtins(bad)["first_bad"] == {"seq": 4, "reason": "missing"}


def test_bytes_of_an_event_travel_unchanged():
    event = RawEvent(log_epoch=1, seq=Seq(1), subject="s", payload=b"\0\xff{}\n", hash="")
    assert msgspec.json.decode(msgspec.json.encode(event), type=RawEvent) == event


def test_the_largest_event_fits_a_message_when_it_is_packed():
    """Also one of digests and the like, which hardly gets smaller."""
    noise = base64.b64encode(random.Random(1).randbytes(EVENT_BYTES_MAX * 3 // 4))
    assert unpack(pack(noise)) == noise
    event = RawEvent(
        log_epoch=1, seq=Seq(1), subject="s", payload=b"", hash="0" * 64, packed=pack(noise)
    )
    assert len(msgspec.json.encode(event)) < (8 << 20) - 4096


def test_what_is_packed_is_never_trusted():
    bomb = pack(bytes(3 * EVENT_BYTES_MAX))
    for packed in (b"junk", pack(b"event")[:-1], bomb):
        with pytest.raises(Corrupt):
            unpack(packed)
