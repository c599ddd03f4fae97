"""What a log says of a cluster's work: bytes moved, waits, evictions. The same for a recorded log
and for a simulated one, so that they can be compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from tensorcast.controlplane.core.view import DEMAND, PRESSURE, is_ready, size_bytes
from tensorcast.controlplane.simulator.world import PolicyFault
from tensorcast.schema.cluster import ClusterView, project
from tensorcast.schema.engine_events import EngineServing
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.events import (
    LeaseAcquired,
    OperationFailed,
    OperationIssued,
    OperationSucceeded,
    ReplicaEvicting,
    ReplicaReady,
    ReplicasRequested,
)
from tensorcast.schema.ids import ArtifactId, NodeId, Tier
from tensorcast.schema.plan_events import PlanFailed, PlanSucceeded

USER: Final = "user:"
Wanted = tuple[ArtifactId, NodeId, Tier]


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """`needs` are the moments at which the log knows that somebody on a node wanted an artifact: a
    get that had to bring it, a lease there, an engine that began to serve it; `hits` are those
    at which it was in the node's memory. `ready_s` are the seconds from each request for a replica
    (or get) to the replica, in order; `plans` succeeded, `plans_failed` did not; `faults` tell
    what was wrong with the answers of policies, the first of each."""

    events: int = 0
    operations: int = 0
    failures: int = 0
    bytes_moved: int = 0
    needs: int = 0
    hits: int = 0
    evictions: int = 0
    evicted_bytes: int = 0
    plans: int = 0
    plans_failed: int = 0
    ready_s: tuple[float, ...] = ()
    faults: tuple[PolicyFault, ...] = ()

    @property
    def hit_ratio(self) -> float | None:
        """The share of needs that did not have to wait; None: nobody needed anything."""
        return self.hits / self.needs if self.needs else None

    def ready_share_s(self, share: float) -> float | None:
        """The time to ready that this share of replicas did not exceed; None: there were none."""
        if not self.ready_s:
            return None
        ordered = sorted(self.ready_s)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


_COUNTS: Final = tuple(
    name for name in Measures.__struct_fields__ if name not in ("ready_s", "faults")
)


class Meter:
    """Measures event by event. `view` is the view before the first one."""

    def __init__(self, view: ClusterView) -> None:
        self.view = view
        self._counts = dict.fromkeys(_COUNTS, 0)
        self._ready_s: list[float] = []
        self._waiting: dict[Wanted, float] = {}

    def note(self, recorded: Recorded, after: ClusterView | None = None) -> None:
        """Takes one event more; `after` is the view after it, if it is known already."""
        before, self.view = self.view, after or project(self.view, recorded)
        self._counts["events"] += 1
        at_s = recorded.at.timestamp()
        match recorded.event:
            case OperationIssued() as event:
                self._counts["operations"] += 1
                if event.policy == DEMAND:
                    self._need(before, event.work.artifact, event.node)
                    self._waiting.setdefault((event.work.artifact, event.node, Tier.DRAM), at_s)
            case OperationSucceeded(bytes_moved=moved):
                self._counts["bytes_moved"] += moved
            case OperationFailed():
                self._counts["failures"] += 1
            case PlanSucceeded():
                self._counts["plans"] += 1
            case PlanFailed():
                self._counts["plans_failed"] += 1
            case ReplicasRequested() as event:
                for node in event.nodes:
                    if not is_ready(before, event.artifact, node, event.tier):
                        self._waiting.setdefault((event.artifact, node, event.tier), at_s)
            case ReplicaReady() as event:
                since_s = self._waiting.pop((event.artifact, event.node, event.tier), None)
                if since_s is not None:
                    self._ready_s.append(at_s - since_s)
            case ReplicaEvicting(replica=name, reason=reason) if reason == PRESSURE:
                self._counts["evictions"] += 1
                self._counts["evicted_bytes"] += size_bytes(before, before.replicas[name].artifact)
            case LeaseAcquired(artifact=artifact, node=node) if node is not None:
                self._need(before, artifact, node)
            case EngineServing(engine=engine, artifact=served) if served is not None:
                home = before.engines[engine].node
                if home is not None:
                    self._need(before, served, home)

    def _need(self, view: ClusterView, artifact: ArtifactId, node: NodeId) -> None:
        self._counts["needs"] += 1
        self._counts["hits"] += is_ready(view, artifact, node, Tier.DRAM)

    def hit(self) -> None:
        """Somebody found at once what he would have had to wait for."""
        self._counts["needs"] += 1
        self._counts["hits"] += 1

    def result(self) -> Measures:
        """What was measured so far."""
        return Measures(ready_s=tuple(self._ready_s), faults=(), **self._counts)


def measure(view: ClusterView, events: Sequence[Recorded]) -> Measures:
    """What these events say; `view` is the view before them."""
    meter = Meter(view)
    for recorded in events:
        meter.note(recorded)
    return meter.result()
