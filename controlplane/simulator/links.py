"""The line between a node's mover and the log, which can be cut.

A mover that is cut off goes on: it decides by what it has heard so far and by what it has done
since, and keeps what it has to say in its journal. When the line is mended the journal is told,
one thing after the other; what was overtaken meanwhile is refused. What must not happen twice
(evictions) waits for the log, so that a node which was given up meanwhile destroys nothing.
"""

from __future__ import annotations

from tensorcast.controlplane.core.view import aim_of, pending_operations
from tensorcast.controlplane.simulator.world import World
from tensorcast.schema.aggregates.operation import OPEN
from tensorcast.schema.cluster import ClusterView, decide, project
from tensorcast.schema.commands import Command, IssueOperation
from tensorcast.schema.errors import TensorCastError
from tensorcast.schema.ids import NodeId


class Link:
    """What one mover knows, and how it says what it does."""

    def __init__(self, world: World, node: NodeId) -> None:
        self._world = world
        self._actor = f"mover:{node}"
        self._own: ClusterView | None = None
        self._journal: list[Command] = []

    @property
    def is_cut(self) -> bool:
        """Whether nothing comes through."""
        return self._own is not None

    @property
    def view(self) -> ClusterView:
        """What the mover knows: the log, or its own projection of it."""
        return self._world.view if self._own is None else self._own

    @property
    def waiting(self) -> int:
        """How many things wait in the journal."""
        return len(self._journal)

    def say(self, *commands: Command) -> bool:
        """Decides commands and tells their events, now or once the line is mended: all, or none
        when one of them is refused."""
        if self._own is None:
            return bool(self._world.try_to(*commands, actor=self._actor))
        view, has_said = self._own, False
        try:
            for command in commands:
                for event in decide(view, command)[0]:
                    view = project(view, self._world.record(view, event, self._actor))
                    has_said = True
        except TensorCastError:
            return False
        self._own = view
        self._journal.extend(commands)
        return has_said

    def cut(self) -> None:
        """From now on nothing comes through."""
        if self._own is None:
            self._own = self._world.view

    def mend(self) -> None:
        """Everything comes through again, the journal first. Of an operation that somebody else has
        issued meanwhile only what came of it is told."""
        self._own = None
        journal, self._journal = self._journal, []
        for command in journal:
            if not self._is_taken(command):
                self._world.try_to(command, actor=self._actor)

    def _is_taken(self, command: Command) -> bool:
        if not isinstance(command, IssueOperation):
            return False
        aim = aim_of(command.node, command.work)
        return any(
            other.status in OPEN and aim_of(other.node, other.work) == aim
            for other in pending_operations(self._world.view, command.work.artifact)
        )
