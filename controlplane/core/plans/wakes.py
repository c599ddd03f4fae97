"""Which plans an event may move. Pure.

It may name too many, never too few: a look that finds nothing to do costs little.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.engine_events import EngineEvent
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.events import (
    ArtifactSealed,
    KeyEvent,
    NodeJoined,
    NodeLeft,
    NodeLost,
    NodeUncordoned,
    OperationCancelled,
    OperationFailed,
    OperationSucceeded,
    ReplicaGone,
    ReplicaLost,
    ReplicaReady,
    SignalEmitted,
)
from tensorcast.schema.ids import PlanId
from tensorcast.schema.plan_events import PlanEvent

_ANY: Final = (
    ArtifactSealed
    | KeyEvent
    | EngineEvent
    | NodeJoined
    | NodeLeft
    | NodeLost
    | NodeUncordoned
    | OperationCancelled
    | OperationFailed
    | OperationSucceeded
    | ReplicaGone
    | ReplicaLost
    | ReplicaReady
    | SignalEmitted
)


def wakes(view: ClusterView, recorded: Recorded) -> Collection[PlanId]:
    """The open plans to look at after an event; `view` includes it."""
    event = recorded.event
    if isinstance(event, PlanEvent):
        return (event.plan,) if event.plan in view.open_plans else ()
    return view.open_plans if isinstance(event, _ANY) else ()
