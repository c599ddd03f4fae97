"""One more event of the log, as it lies there, into a view."""

from __future__ import annotations

from tensorcast.log.port import Stored
from tensorcast.schema.cluster import ClusterView, park, project
from tensorcast.schema.codec import decode
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.errors import Corrupt
from tensorcast.schema.parking import NO_EVENT, subject_id


def take(view: ClusterView, stored: Stored) -> tuple[ClusterView, Recorded | None]:
    """The view after the event, and the event; None for bytes that are none, which are parked."""
    try:
        recorded = decode(stored.payload, stored.seq)
    except Corrupt:
        if stored.seq <= view.at:
            return view, None
        return park(view, stored.seq, subject_id(stored.subject), NO_EVENT), None
    return project(view, recorded), recorded
