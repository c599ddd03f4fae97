"""What clients ask the control plane about the past; part of `ControlPlane`."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol, TypeVar

import msgspec

from tensorcast.client.engine_verbs import as_moment
from tensorcast.client.naming import What, name_of
from tensorcast.client.position import Position
from tensorcast.schema.api import Show
from tensorcast.schema.api_past import (
    CHANGES_MAX,
    EFFECTS_MAX,
    DiffInfo,
    DiffQuery,
    LineageInfo,
    MomentInfo,
    MomentQuery,
    WhyInfo,
    WhyQuery,
)
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.ids import Seq, parse_node, parse_tier

T = TypeVar("T")
When = int | float | datetime
"""A position in the log (an int), or a time: a datetime with a zone, or a float as `time.time()`
gives it."""
PAST_S = 120.0
"""A moment of a history without snapshots is folded from its beginning."""


class _Asks(Protocol):
    @property
    def position(self) -> Position: ...

    async def ask(
        self, verb: str, request: msgspec.Struct, answer: type[T], *, timeout: float | None = None
    ) -> T: ...


class PastVerbs:
    """Questions about moments, differences, reasons and lineage, put by `ask`."""

    async def moment(self: _Asks, when: When | None = None) -> MomentInfo:
        """The event that a position or a time stands for (None: the last one). Raises
        InvalidArgument for what is yet to come."""
        seq, time = split_when(when)
        return await self.ask("moment", MomentQuery(seq=seq, time=time), MomentInfo)

    async def diff(
        self: _Asks,
        since: When,
        to: When,
        *,
        kind: str | None = None,
        what: str | None = None,
        limit: int = CHANGES_MAX,
    ) -> DiffInfo:
        """What is different at the later of two moments; with `kind` (artifact, key, node,
        operation, engine) and `what` of that one. Raises InvalidArgument, NotFound."""
        since_seq, since_time = split_when(since)
        to_seq, to_time = split_when(to)
        query = DiffQuery(
            since_seq=since_seq,
            since_time=since_time,
            to_seq=to_seq,
            to_time=to_time,
            kind=kind,
            what=what,
            limit=limit,
        )
        return await self.ask("diff", query, DiffInfo, timeout=PAST_S)

    async def why(
        self: _Asks,
        event: str | int | None = None,
        *,
        artifact: What | None = None,
        node: str | None = None,
        tier: str | None = None,
        limit: int = EFFECTS_MAX,
    ) -> WhyInfo:
        """What led to an event (its position or id) and what came of it; or to the replica of an
        artifact on a node. Raises NotFound, InvalidArgument."""
        query = WhyQuery(
            event=None if event is None else str(event),
            artifact=None if artifact is None else name_of(artifact),
            node=None if node is None else parse_node(node),
            tier=None if tier is None else parse_tier(tier),
            limit=limit,
            after=self.position.seq,
        )
        return await self.ask("audit.why", query, WhyInfo)

    async def lineage(self: _Asks, what: What, *, at: Seq | None = None) -> LineageInfo:
        """Where an artifact comes from, and what it was used for. Raises NotFound."""
        query = Show(what=name_of(what), after=self.position.seq, at=at)
        return await self.ask("artifact.lineage", query, LineageInfo)


def split_when(when: When | None) -> tuple[Seq | None, datetime | None]:
    """A position, or a time. Raises InvalidArgument for what is neither."""
    if isinstance(when, bool) or not isinstance(when, int | float | datetime | None):
        raise InvalidArgument(
            f"{when!r} is no moment.", hint="Give a position (int), a datetime or a float."
        )
    if isinstance(when, int):
        return Seq(when), None
    return None, as_moment(when)
