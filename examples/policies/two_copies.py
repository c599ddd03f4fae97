"""Keeps two copies of everything small, on the nodes with most room.

TENSORCAST_POLICIES=examples/policies/two_copies.py tcctl up, then: tcctl policy enable two-copies
"""

from typing import Annotated

from msgspec import Meta

from tensorcast.controlplane.core.policies.base import Configured, Parameters
from tensorcast.controlplane.core.view import choose_node, ready_replicas, rooms, size_bytes
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.commands import Command, RequestReplicas
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.events import ReplicaReady
from tensorcast.schema.ids import Tier


class TwoCopiesParameters(Parameters, frozen=True, kw_only=True):
    bytes_max: Annotated[int, Meta(ge=0)] = 1 << 30


class TwoCopies(Configured[TwoCopiesParameters]):
    """Asks for a second copy of what is no larger than `bytes_max`."""

    name = "two-copies"
    Parameters = TwoCopiesParameters

    def react(self, view: ClusterView, recorded: Recorded) -> tuple[Command, ...]:
        event = recorded.event
        if not isinstance(event, ReplicaReady) or len(ready_replicas(view, event.artifact)) != 1:
            return ()
        if size_bytes(view, event.artifact) > self.parameters.bytes_max:
            return ()
        node = choose_node(view, event.artifact, Tier.DRAM, rooms(view, Tier.DRAM), [event.node])
        return () if node is None else (RequestReplicas(artifact=event.artifact, nodes=(node,)),)
