"""Pins the weights that engines serve.

TENSORCAST_POLICIES=examples/policies/pin_served.py tcctl up, then: tcctl policy enable pin-served
"""

from tensorcast.controlplane.core.policies.base import Configured, Parameters
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.commands import Command, PinArtifact
from tensorcast.schema.engine_events import EngineServing
from tensorcast.schema.envelope import Recorded


class PinServedParameters(Parameters, frozen=True, kw_only=True):
    kinds: tuple[str, ...] = ("weights",)


class PinServed(Configured[PinServedParameters]):
    """Keeps what engines begin to serve from eviction, for good."""

    name = "pin-served"
    Parameters = PinServedParameters

    def react(self, view: ClusterView, recorded: Recorded) -> tuple[Command, ...]:
        event = recorded.event
        if not isinstance(event, EngineServing) or event.artifact not in view.artifacts:
            return ()
        if view.artifacts[event.artifact].kind not in self.parameters.kinds:
            return ()
        return (PinArtifact(artifact=event.artifact),)
