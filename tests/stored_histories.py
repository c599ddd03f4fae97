"""Random legal histories as they lie in a log, from a seed."""

from __future__ import annotations

import functools

from histories import Dice
from tensorcast.log.folding import take
from tensorcast.log.port import Stored
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.codec import encode
from tensorcast.schema.ids import Seq
from tensorcast.schema.subjects import subject_of

EVENTS = 300


@functools.cache
def history(seed: int) -> tuple[Stored, ...]:
    """At least `EVENTS` events."""
    dice, view, log = Dice(seed), ClusterView(), list[Stored]()
    while len(log) < EVENTS:
        for one in dice.drafts(view):
            log.append(Stored(Seq(len(log) + 1), subject_of("c", one.event), encode(one)))
            view, _ = take(view, log[-1])
    return tuple(log)
