"""The states that a whole history leads to, gathered in place: much faster than view by view, for
nobody looks at what was in between. The rule of what is parked is that of the fold."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

import asyncpg

from tensorcast.controlplane.store.dead_letters import (
    NOTHING_REFUSED,
    Fault,
    Letter,
    Refused,
    name_of,
)
from tensorcast.controlplane.store.rows import STATE_TYPES, UNREADABLE, read_event, state_id
from tensorcast.controlplane.store.tables import READ_MODELS
from tensorcast.log.port import Stored
from tensorcast.schema.aggregates.artifact import Artifact
from tensorcast.schema.aggregates.engine import Engine
from tensorcast.schema.aggregates.key import KeyState
from tensorcast.schema.aggregates.lease import Lease
from tensorcast.schema.aggregates.namespace import NamespaceRules
from tensorcast.schema.aggregates.node import Node
from tensorcast.schema.aggregates.operation import Operation
from tensorcast.schema.aggregates.plan import Plan
from tensorcast.schema.aggregates.policy import PolicyState
from tensorcast.schema.aggregates.replica import Replica
from tensorcast.schema.aggregates.signal import SignalTopic
from tensorcast.schema.cluster import ClusterView, State, assemble, evolve
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.errors import Conflict
from tensorcast.schema.events import UnknownEvent, aggregate_of
from tensorcast.schema.ids import (
    ArtifactId,
    EngineId,
    Key,
    LeaseId,
    NodeId,
    OperationId,
    PlanId,
    ReplicaId,
    Seq,
)
from tensorcast.schema.namespaces import Namespace
from tensorcast.schema.parking import (
    FAULTS,
    NO_EVENT,
    Parked,
    explain,
    is_blocked,
    park_one,
    subject_id,
)
from tensorcast.schema.signals import Topic

PREFETCH_ROWS: Final = 4000
_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)
_HISTORY: Final = (
    "SELECT seq, subject, payload FROM events"
    " WHERE log_epoch = $1 AND seq > $2 AND seq <= $3 ORDER BY seq"
)
_MAPS: Final[dict[type[State], str]] = {
    STATE_TYPES[kind]: table.name for kind, table in READ_MODELS.items()
}


class Gathering:
    """The states after event `at`, what is parked, and a letter for each event that was parked
    since it began, with nothing or with a view. `refused` are events that Postgres has refused to
    have in a read model."""

    def __init__(
        self, refused: Refused = NOTHING_REFUSED, begun: ClusterView | None = None
    ) -> None:
        self.at = self.began_at = begun.at if begun is not None else Seq(0)
        self.artifacts: dict[ArtifactId, Artifact] = {}
        self.keys: dict[Key, KeyState] = {}
        self.replicas: dict[ReplicaId, Replica] = {}
        self.operations: dict[OperationId, Operation] = {}
        self.nodes: dict[NodeId, Node] = {}
        self.leases: dict[LeaseId, Lease] = {}
        self.engines: dict[EngineId, Engine] = {}
        self.signals: dict[Topic, SignalTopic] = {}
        self.plans: dict[PlanId, Plan] = {}
        self.namespaces: dict[Namespace, NamespaceRules] = {}
        self.policies: dict[str, PolicyState] = {}
        self.parked: dict[str, Parked] = {}
        self.letters: list[Letter] = []
        self._refused = refused
        self._maps: dict[type[State], dict[str, State]] = {
            kind: getattr(self, name) for kind, name in _MAPS.items()
        }
        if begun is not None:
            for name in _MAPS.values():
                getattr(self, name).update(getattr(begun, name))
            self.parked.update(begun.parked)
        self.parked_at_first = frozenset(self.parked)

    def take(self, stored: Stored) -> None:
        """Takes one more event, the next one of the history, or parks it."""
        self.at = stored.seq
        recorded = read_event(stored, _LONG_AGO)
        event = recorded.event
        if stored.seq in self._refused:
            name, said = name_of(stored, recorded), self._refused[stored.seq]
            return self._park(recorded, name, Fault.POSTGRES, said)
        if isinstance(event, UnknownEvent):
            if recorded.type == UNREADABLE and not recorded.v:
                self._park(recorded, subject_id(stored.subject), Fault.UNREADABLE, NO_EVENT)
            return None
        if self.parked and is_blocked(self.parked, *aggregate_of(event)):
            return self._park(recorded, name_of(stored, recorded), Fault.FOLLOWS, "")
        try:
            state = evolve(self, recorded, event)
        except FAULTS as error:
            return self._park(recorded, name_of(stored, recorded), Fault.FOLD, explain(error))
        self.place(state)
        return None

    def place(self, state: State) -> None:
        """Has a state in the place of the one of the same thing."""
        self._maps[type(state)][state_id(state)] = state

    def _park(self, recorded: Recorded, name: str, fault: Fault, reason: str) -> None:
        held = park_one(self.parked, name, recorded.seq, reason)
        self.parked[name] = held
        is_behind = held.first != recorded.seq
        reason = f"it waits for event {held.first}" if is_behind else held.reason
        if is_behind and fault is not Fault.UNREADABLE:
            fault = Fault.FOLLOWS
        self.letters.append(
            Letter(seq=recorded.seq, name=name, type=recorded.type, fault=fault, reason=reason)
        )

    def states(self, after: Seq = Seq(0)) -> Iterator[State]:  # noqa: B008 - a number
        """The states that changed after event `after`."""
        for states in self._maps.values():
            yield from (state for state in states.values() if state.version > after)

    def view(self) -> ClusterView:
        """The view that these states make up."""
        return assemble([*self.states(), *self.parked.values()], at=self.at)


async def gather(
    driver: asyncpg.Connection, gathering: Gathering, log_epoch: int, to_seq: Seq
) -> None:
    """Takes the history on to event `to_seq`, inside a transaction of the driver. Modifies the
    gathering. Raises Conflict when an event that comes next is not in the tables (any more)."""
    rows = driver.cursor(_HISTORY, log_epoch, gathering.at, to_seq, prefetch=PREFETCH_ROWS)
    async for seq, subject, payload in rows:
        if seq != gathering.at + 1:
            raise Conflict(
                f"Event {gathering.at + 1} is not in the tables: it was archived meanwhile, or is"
                " missing.",
                hint="Rebuild again. `tcctl audit verify` tells whether it is missing.",
            )
        gathering.take(Stored(seq, subject, payload))
