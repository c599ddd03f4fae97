"""How the mover reports: a command with the mover's name on it, on disk before anything follows."""

from __future__ import annotations

from collections.abc import Sequence

from tensorcast.log.identity import new_event_id, now
from tensorcast.movers.journal import Journal, Report
from tensorcast.schema.commands import Command
from tensorcast.schema.ids import Epoch, EventId, NodeId


class Life:
    """Who this mover is. `epoch` rises when it has to join again; 0 before the first time."""

    def __init__(self, node: NodeId) -> None:
        self.node = node
        self.epoch = Epoch(0)

    @property
    def actor(self) -> str:
        return f"mover:{self.node}"


class Reporter:
    """Makes reports of commands and records them in the journal."""

    def __init__(self, journal: Journal, life: Life) -> None:
        self._journal = journal
        self._life = life

    async def report(self, commands: Sequence[Command], cause: EventId | None) -> EventId:
        """Records the commands, in order; they are on disk when it returns. Returns the id that
        the event of the last one will have."""
        reports = [
            Report(
                id=new_event_id(),
                at=now(),
                actor=self._life.actor,
                command=command,
                cause=cause,
            )
            for command in commands
        ]
        await self._journal.record(reports)
        return reports[-1].id

    async def settled(self) -> None:
        """Returns when the log has taken (or refused) all reports made before the call."""
        await self._journal.settled()
