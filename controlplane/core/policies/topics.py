"""Topics: what data a signal must have on which topic.

It answers no event. Its parameters are the shapes of topics, and the control plane asks it whether
a signal that a client wants to emit has those of all patterns that choose its topic; the system's
own topics have theirs in `schema/system_signals.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

import msgspec

from tensorcast.controlplane.core.policies.base import Configured, Parameters
from tensorcast.schema.aggregates.policy import PolicyStatus
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.commands import Command
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.shapes import check_shape, find_fault
from tensorcast.schema.signals import Pattern, Topic, matches, parse_pattern
from tensorcast.schema.system_signals import SHAPES

SHAPES_MAX = 1000


class TopicsParameters(Parameters, frozen=True, kw_only=True):
    """The shape (JSON Schema) of the data on the topics that a pattern chooses."""

    shapes: dict[str, dict[str, object]] = msgspec.field(default_factory=dict)


class Topics(Configured[TopicsParameters]):
    """Refuses signals whose data has not the shape of their topic."""

    name = "topics"
    Parameters = TopicsParameters

    def __init__(self, parameters: TopicsParameters) -> None:
        super().__init__(parameters)
        if len(parameters.shapes) > SHAPES_MAX:
            raise InvalidArgument(f"There are {SHAPES_MAX} shapes of topics at most.")
        for pattern, shape in parameters.shapes.items():
            parse_pattern(pattern)
            check_shape(shape)

    def react(self, view: ClusterView, recorded: Recorded) -> tuple[Command, ...]:
        return ()

    def check(self, topic: Topic, data: Mapping[str, object]) -> None:
        """Raises InvalidArgument for data that has not the shapes of its topic."""
        given = ((Pattern(pattern), shape) for pattern, shape in self.parameters.shapes.items())
        for pattern, shape in chain(SHAPES.items(), given):
            fault = find_fault(shape, data) if matches(pattern, topic) else None
            if fault is not None:
                raise InvalidArgument(
                    f"The signal on {topic} is not as topics {pattern} want it: {fault}.",
                    hint="`tcctl signal shapes` shows what they want.",
                )


def check_signal(view: ClusterView, topic: Topic, data: Mapping[str, object]) -> None:
    """Refuses a signal as the policy would, with its parameters of now, when it is on. Raises
    InvalidArgument."""
    state = view.policies.get(Topics.name)
    if state is not None and state.status in (PolicyStatus.DISABLED, PolicyStatus.STOPPED):
        return
    given = state.parameters if state is not None else {}
    Topics(msgspec.convert(given, TopicsParameters)).check(topic, data)
