from __future__ import annotations

import msgspec

from samples import BEGIN
from tensorcast.schema.api_store import DeadLetter, DeadPage, DeadQuery
from tensorcast.schema.ids import Seq


def test_what_is_parked_survives_the_way():
    letter = DeadLetter(
        log="log",
        seq=Seq(7),
        kind="node",
        id="n1",
        type="node.cordoned",
        fault="fold",
        reason="why",
        parked_at=BEGIN,
    )
    page = DeadPage(letters=(letter,), total=3)
    assert msgspec.json.decode(msgspec.json.encode(page), type=DeadPage) == page
    assert msgspec.json.decode(b"{}", type=DeadQuery) == DeadQuery()
