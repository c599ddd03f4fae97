"""What clients ask the control plane about inference engines; part of `ControlPlane`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Protocol, TypeVar

import msgspec

from tensorcast.schema.api import LIST_MAX, Browse, EngineInfo, ServedInfo, Show, WeightsQuery
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.ids import parse_node

T = TypeVar("T")
Moment = datetime | float
"""A time with a zone, or seconds since 1970 as `time.time()` gives them."""


class _Asks(Protocol):
    async def ask(
        self, verb: str, request: msgspec.Struct, answer: type[T], *, timeout: float | None = None
    ) -> T: ...


class EngineVerbs:
    """Questions about engines, put by `ask`. An engine is named by its name or its address."""

    async def engines(
        self: _Asks, *, status: str | None = None, node: str | None = None, limit: int = LIST_MAX
    ) -> tuple[EngineInfo, ...]:
        """The engines that run (or those of `status`: up, left, lost, all), the last changed first;
        those of one node."""
        place = parse_node(node) if node is not None else None
        request = Browse(status=status, node=place, limit=limit)
        return await self.ask("engine.list", request, tuple[EngineInfo, ...])

    async def engine(self: _Asks, engine: str) -> EngineInfo:
        """One engine with the weights that it served last. Raises NotFound."""
        return await self.ask("engine.show", Show(what=engine), EngineInfo)

    async def weights_of(self: _Asks, engine: str, *, at: Moment | None = None) -> ServedInfo:
        """Which weights an engine served at a time (None: now), and from when to when. Raises
        NotFound when it served none then, or none that it told of."""
        query = WeightsQuery(engine=engine, at=as_moment(at))
        return await self.ask("engine.weights", query, ServedInfo)


def as_moment(at: Moment | None) -> datetime | None:
    """The time that is meant. Raises InvalidArgument for one without a zone, or for none."""
    if at is None:
        return None
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise InvalidArgument(
                f"The time {at.isoformat()} has no zone.", hint="As in datetime.now(UTC)."
            )
        return at
    try:
        return datetime.fromtimestamp(at, UTC)
    except (TypeError, ValueError, OverflowError, OSError) as error:
        raise InvalidArgument(
            f"{at!r} is not a time.", hint="Give a datetime, or seconds since 1970."
        ) from error
