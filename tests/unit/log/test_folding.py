from __future__ import annotations

from conformance.log import draft
from tensorcast.log.folding import take
from tensorcast.log.port import Stored
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.codec import encode
from tensorcast.schema.events import NodeJoined
from tensorcast.schema.ids import Epoch, NodeId, Seq
from tensorcast.schema.parking import NO_EVENT


def joined(node: str) -> NodeJoined:
    return NodeJoined(
        node=NodeId(node), epoch=Epoch(1), address="a:1", tiers={}, transports=("tcp",)
    )


def test_bytes_that_are_no_event_park_what_their_subject_names():
    view, recorded = take(ClusterView(), Stored(Seq(1), "tc.c.log.node.n1", b"junk"))
    assert recorded is None
    assert view.parked["node/n1"].reason == NO_EVENT
    assert take(view, Stored(Seq(1), "tc.c.log.node.n2", b"junk")) == (view, None)
    joining = Stored(Seq(2), "tc.c.log.node.n1", encode(draft(joined("n1"))))
    view, recorded = take(view, joining)
    assert recorded is not None
    assert (view.at, view.skipped, len(view.nodes)) == (2, 2, 0)
    view, _ = take(view, Stored(Seq(3), "tc.c.log.node.n2", encode(draft(joined("n2")))))
    assert list(view.nodes) == ["n2"]
