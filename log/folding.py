"""One more event of the log, as it lies there, into a view.

Several readers of a process fold the same log. A `Folding` that they share decodes and folds each
event once for all of them, as long as none is far behind the others.
"""

from __future__ import annotations

from typing import Final

from tensorcast.log.port import Stored
from tensorcast.schema.cluster import ClusterView, park, project
from tensorcast.schema.codec import decode
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.errors import Corrupt
from tensorcast.schema.ids import Seq
from tensorcast.schema.parking import NO_EVENT, subject_id

KEPT_MAX: Final = 8192
"""So many events are remembered, each with the view before and after it."""
_Step = tuple[Stored, Recorded, ClusterView, ClusterView]


def take(view: ClusterView, stored: Stored) -> tuple[ClusterView, Recorded | None]:
    """The view after the event, and the event; None for bytes that are none, which are parked."""
    return Folding(1).take(view, stored)


class Folding:
    """Folds the events of one log. Views of one position are taken for equal when nothing is
    parked in them: both follow from the same events."""

    def __init__(self, kept_max: int = KEPT_MAX) -> None:
        self._steps: list[_Step | None] = [None] * kept_max

    def take(self, view: ClusterView, stored: Stored) -> tuple[ClusterView, Recorded | None]:
        """The view after the event, and the event; None for bytes that are none, which are
        parked."""
        try:
            recorded = self.decode(stored)
        except Corrupt:
            if stored.seq <= view.at:
                return view, None
            return park(view, stored.seq, subject_id(stored.subject), NO_EVENT), None
        return self.project(view, stored, recorded), recorded

    def decode(self, stored: Stored) -> Recorded:
        """As `codec.decode`. Raises Corrupt."""
        step = self._find(stored)
        return step[1] if step is not None else decode(stored.payload, stored.seq)

    def project(self, view: ClusterView, stored: Stored, recorded: Recorded) -> ClusterView:
        """As `cluster.project`."""
        step = self._find(stored)
        if step is not None and _is_same(step[2], view):
            return step[3]
        after = project(view, recorded)
        if view.at == stored.seq - 1:
            self._steps[stored.seq % len(self._steps)] = (stored, recorded, view, after)
        return after

    def _find(self, stored: Stored) -> _Step | None:
        step = self._steps[stored.seq % len(self._steps)]
        if step is None or step[0].seq != stored.seq:
            return None
        return step if step[0] is stored or step[0].payload == stored.payload else None


def _is_same(one: ClusterView, other: ClusterView) -> bool:
    return one is other or (one.at == other.at != Seq(0) and not one.parked and not other.parked)
