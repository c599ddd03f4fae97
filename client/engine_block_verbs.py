"""What clients tell and ask of the blocks in engines' own caches; part of `ControlPlane`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import msgspec

from tensorcast.schema.api_engine_blocks import (
    EngineView,
    HoldersQuery,
    PrefixHolder,
    ReportBlocks,
    Reported,
    ReportedEvent,
    ViewQuery,
)
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.prefixes import TOKENS_MAX

T = TypeVar("T")


class _Asks(Protocol):
    @property
    def actor(self) -> str: ...

    async def ask(
        self, verb: str, request: msgspec.Struct, answer: type[T], *, timeout: float | None = None
    ) -> T: ...


class EngineBlockVerbs:
    """Answers are as new as Postgres: a moment behind."""

    async def report_blocks(self: _Asks, events: Sequence[ReportedEvent]) -> Reported:
        """Tells what happened to an engine's blocks. Safe to repeat with the same ids for two
        minutes. Raises InvalidArgument."""
        request = ReportBlocks(actor=self.actor, events=tuple(events))
        return await self.ask("engine_blocks.report", request, Reported)

    async def engine_views(self: _Asks, *, all: bool = False) -> tuple[EngineView, ...]:
        """What is known of the blocks in the caches of the engines that run, and how well."""
        return await self.ask("engine_blocks.views", ViewQuery(all=all), tuple[EngineView, ...])

    async def holders(
        self: _Asks, tokens: Sequence[int], *, lora: str | None = None, salt: str | None = None
    ) -> tuple[PrefixHolder, ...]:
        """Which engines hold the beginning of a prompt in their own caches, the longest part first;
        each with how well that is known. `lora` and `salt` are the adapter and the cache salt of
        the request. Raises InvalidArgument."""
        if len(tokens) > TOKENS_MAX:
            raise InvalidArgument(
                f"A prompt of {len(tokens)} tokens is too long.",
                hint=f"{TOKENS_MAX} are the limit.",
            )
        request = HoldersQuery(tokens=tuple(map(int, tokens)), lora=lora, salt=salt)
        return await self.ask("engine_blocks.holders", request, tuple[PrefixHolder, ...])
