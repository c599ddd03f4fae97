"""What a policy is, and how it numbers the operations that it issues."""

from __future__ import annotations

from typing import Protocol

from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.commands import Command, IssueOperation
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.ids import EventId, NodeId, derive_operation_id
from tensorcast.schema.work import Work

Task = tuple[NodeId, Work]
"""Work for a node, before it has a name."""


class Policy(Protocol):
    """Answers events with commands. Never waits, never remembers: all it knows is in the view."""

    @property
    def name(self) -> str: ...

    def react(self, view: ClusterView, recorded: Recorded) -> tuple[Command, ...]:
        """The commands that follow from an event; `view` is the cluster right after it."""
        ...


def issue(policy: str, cause: EventId, tasks: tuple[Task, ...]) -> tuple[IssueOperation, ...]:
    """One operation for each task, numbered in order, so that the same decision always gets the
    same ids."""
    return tuple(
        IssueOperation(
            operation=derive_operation_id(cause, policy, ordinal),
            node=node,
            work=work,
            policy=policy,
        )
        for ordinal, (node, work) in enumerate(tasks)
    )
