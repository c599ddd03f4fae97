"""What a policy is, and how it numbers the operations that it issues."""

from __future__ import annotations

from typing import ClassVar, Generic, Protocol, TypeVar

import msgspec

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


class Parameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What can be set of a policy while the cluster runs: a field for each, with its default. Types
    and limits (`Annotated[int, Meta(ge=1)]`) are checked when somebody sets them."""


_Parameters = Parameters
P = TypeVar("P", bound=Parameters)


class Configured(Generic[P]):
    """A policy with parameters: a class with a `name`, its `Parameters` and `react`. It is made
    anew whenever they change, so it may compute things from them in `__init__`."""

    name: ClassVar[str]
    Parameters: ClassVar[type[_Parameters]] = _Parameters

    def __init__(self, parameters: P) -> None:
        self.parameters = parameters

    def react(self, view: ClusterView, recorded: Recorded) -> tuple[Command, ...]:
        """As `Policy.react`."""
        raise NotImplementedError


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
