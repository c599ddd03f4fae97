"""Says on a topic which nodes fail at their work, for whoever pages people.

TENSORCAST_POLICIES=examples/policies/tell_failures.py tcctl up; tcctl policy enable tell-failures;
then listen: tcctl signal tail node.failing
"""

from tensorcast.controlplane.core.policies.base import Configured, Parameters
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.commands import Command, EmitSignal
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.events import OperationFailed
from tensorcast.schema.signals import Topic


class TellFailuresParameters(Parameters, frozen=True, kw_only=True):
    attempts: int = 3


class TellFailures(Configured[TellFailuresParameters]):
    """Emits `node.failing` when an operation has failed `attempts` times."""

    name = "tell-failures"
    Parameters = TellFailuresParameters

    def react(self, view: ClusterView, recorded: Recorded) -> tuple[Command, ...]:
        event = recorded.event
        if not isinstance(event, OperationFailed):
            return ()
        operation = view.operations[event.operation]
        if operation.attempt != self.parameters.attempts:
            return ()
        data = {"node": operation.node, "operation": operation.id, "fault": event.fault.detail}
        return (EmitSignal(topic=Topic("node.failing"), data=data),)
