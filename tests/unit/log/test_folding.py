from __future__ import annotations

import random

from conformance.log import draft
from histories import Dice
from tensorcast.log.folding import Folding, take
from tensorcast.log.port import Stored
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.codec import encode
from tensorcast.schema.events import NodeJoined
from tensorcast.schema.ids import Epoch, NodeId, Seq
from tensorcast.schema.parking import NO_EVENT
from tensorcast.schema.subjects import subject_of


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


def history(seed: int, count: int) -> list[Stored]:
    """A legal history, with bytes that are no event in between."""
    dice, view, stored = Dice(seed), ClusterView(), list[Stored]()
    while len(stored) < count:
        for one in dice.drafts(view):
            subject = subject_of("c", one.event)
            stored.append(Stored(Seq(len(stored) + 1), subject, encode(one)))
            view, _ = take(view, stored[-1])
        if len(stored) % 50 == 0:
            stored.append(Stored(Seq(len(stored) + 1), "tc.c.log.signal.x", b"junk"))
            view, _ = take(view, stored[-1])
    return stored


def test_readers_that_share_a_folding_see_what_each_sees_alone():
    """Whichever is ahead, and however far; one of them begins from a view that was kept."""
    stored = history(3, 300)
    alone = [ClusterView()]
    for one in stored:
        alone.append(take(alone[-1], one)[0])
    folding, places = Folding(kept_max=32), [0, 0, 100]
    views = [ClusterView(), ClusterView(), alone[100]]
    steps = random.Random(1)
    while min(places) < len(stored):
        reader = steps.choice([n for n in range(3) if places[n] < len(stored)])
        for one in stored[places[reader] : places[reader] + steps.choice((1, 5, 60))]:
            views[reader], recorded = folding.take(views[reader], one)
            places[reader] += 1
            assert views[reader] == alone[places[reader]]
            assert recorded == take(ClusterView(), one)[1]


def test_what_is_shared_is_not_folded_twice():
    stored, folding = history(4, 40), Folding()
    first = second = ClusterView()
    for one in stored[:40]:
        first, _ = folding.take(first, one)
        second, _ = folding.take(second, one)
    assert first is second
