"""Changes of an engine's blocks on their way to the cluster: packed, in order, none left out.

The cluster may be away for as long as it likes: telling waits, and the engine's own record keeps
what happens meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Final, Protocol

import msgspec

from tensorcast.client.identity import new_event_id
from tensorcast.engines.vllm.kv_tracking import Anew, Change, Gone, Held
from tensorcast.schema.api_engine_blocks import (
    REPORT_EVENTS_MAX,
    EngineView,
    Reported,
    ReportedEvent,
)
from tensorcast.schema.engine_blocks import (
    ENGINE_BLOCK_EVENT_TYPES,
    ENGINE_EVENT_BLOCKS_MAX,
    EngineBlockEvent,
    EngineBlocksCleared,
    EngineBlocksEvicted,
    EngineBlocksStored,
)
from tensorcast.schema.errors import Rejected, TensorCastError
from tensorcast.schema.ids import EngineId, Seq

RETRY_S: Final = 0.5
RETRY_S_MAX: Final = 5.0
_NAMES: Final = {cls: name for name, cls in ENGINE_BLOCK_EVENT_TYPES.items()}
_logger = logging.getLogger(__name__)


class Cluster(Protocol):
    """Where it is told."""

    async def report_blocks(self, events: Sequence[ReportedEvent]) -> Reported: ...


class KvLogChanged(Exception):
    """The KV log is another one than before: everything is to be told anew."""


class Teller:
    """Tells of one engine, in a life of its own: what another teller says of it afterwards counts
    instead. Call `tell` from one task only."""

    def __init__(self, cluster: Cluster, engine: EngineId) -> None:
        self.life = secrets.token_hex(8)
        self._cluster = cluster
        self._engine = engine
        self._created: str | None = None
        self._begun = Seq(0)

    async def tell(self, changes: Sequence[Change], batch: int, held_blocks: int) -> None:
        """Returns once all is in the KV log, however long that takes. `batch` is how far the
        engine's record was read, `held_blocks` how many blocks it holds then. Raises KvLogChanged,
        and what is wrong with the events themselves."""
        events = [
            ReportedEvent(
                id=new_event_id(),
                type=_NAMES[type(event)],
                at=datetime.now(UTC),
                data=msgspec.Raw(msgspec.json.encode(event)),
            )
            for event in pack_changes(self._engine, self.life, changes, batch, held_blocks)
        ]
        for start in range(0, len(events), REPORT_EVENTS_MAX):
            await self._report(events[start : start + REPORT_EVENTS_MAX])

    async def _report(self, events: Sequence[ReportedEvent]) -> None:
        pause_s = RETRY_S
        while True:
            try:
                told = await self._cluster.report_blocks(events)
                break
            except TensorCastError as error:
                if not error.retryable:
                    raise
                _logger.warning("the blocks of %s wait to be told: %s", self._engine, error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_S_MAX)
        before, self._created = self._created, told.created
        if before is not None and before != told.created:
            self._begun = Seq(0)
            raise KvLogChanged
        self._begun = self._begun or told.seq

    def check_alone(self, views: Sequence[EngineView]) -> None:
        """Raises Rejected when another watcher has begun to tell of the engine: nothing that this
        one says counts any more, so nobody may go on as if it did."""
        for view in views:
            is_own = view.engine != self._engine or view.life == self.life
            if not is_own and self._begun and view.seq > self._begun:
                raise Rejected(
                    f"Another watcher tells of {self._engine} now.",
                    hint="One agent for each engine is enough.",
                )


def pack_changes(
    engine: EngineId, life: str, changes: Sequence[Change], batch: int, held_blocks: int
) -> Iterator[EngineBlockEvent]:
    """The events of changes, each small enough. Pure."""
    common = {"engine": engine, "life": life, "batch": batch}
    for change in changes:
        if isinstance(change, Anew):
            yield EngineBlocksCleared(
                engine=engine,
                life=life,
                batch=batch,
                is_exact=change.is_exact,
                reason=change.reason[:200],
            )
            continue
        for hashes, places in _split(change.hashes):
            packed = {
                **common,
                "medium": change.medium,
                "group": change.group,
                "hash_bytes": len(hashes[0]),
                "hashes": b"".join(hashes),
                "held_blocks": held_blocks,
            }
            if isinstance(change, Gone):
                yield msgspec.convert(packed, EngineBlocksEvicted)
            else:
                prefixes = b"".join(change.prefixes[place] for place in places)
                yield msgspec.convert(
                    packed | {"block_tokens": change.block_tokens, "prefixes": prefixes},
                    EngineBlocksStored,
                )


def _split(hashes: Sequence[bytes]) -> Iterator[tuple[list[bytes], list[int]]]:
    """Runs of hashes of one length and their places, none too long for one event."""
    for _, run in groupby(range(len(hashes)), key=lambda place: len(hashes[place])):
        places = list(run)
        for start in range(0, len(places), ENGINE_EVENT_BLOCKS_MAX):
            part = places[start : start + ENGINE_EVENT_BLOCKS_MAX]
            yield [hashes[place] for place in part], part


__all__ = ["Cluster", "Held", "KvLogChanged", "Teller", "pack_changes"]
