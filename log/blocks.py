"""The KV log: what nodes say of their KV blocks, on a JetStream object of its own.

It keeps the envelope and the order of the log, and neither its promise to keep everything nor its
expectations: each node writes about itself alone, and the oldest events go when they are too old or
too many. What went is told anew by its node when it matters (`BlocksCleared` and what follows), so
a reader that begins at the last clearing of each node misses nothing that is still true.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, Sequence
from typing import Final, Protocol

import msgspec

from tensorcast.log.batch import Entry
from tensorcast.log.connection import Connection, Refused, explain
from tensorcast.log.creation import (
    Info,
    State,
    check_identity,
    check_version,
    create,
    log_config,
    read_info,
)
from tensorcast.log.lookup import read_message
from tensorcast.log.ordered import read_ordered
from tensorcast.log.port import APPEND_EVENTS_MAX, Stored
from tensorcast.log.publish import publish
from tensorcast.schema.block_events import (
    BlockDraft,
    BlocksCleared,
    KvEvent,
    decode_blocks,
    encode_blocks,
)
from tensorcast.schema.codec import EVENT_BYTES_MAX
from tensorcast.schema.engine_blocks import EngineBlockEvent
from tensorcast.schema.errors import Conflict, Corrupt, InvalidArgument, Unavailable
from tensorcast.schema.ids import NodeId, Seq
from tensorcast.schema.subjects import (
    kv_changed,
    kv_cleared,
    kv_engine,
    kv_log_name,
    kv_subjects,
)

READ_EVENTS_MAX: Final = 64
"""Events of one batch that is read: each may have two megabytes."""
LOG_BYTES: Final = 512 << 20
LOG_BYTES_MIN: Final = 16 << 20
LOG_AGE_S: Final = 24 * 3600
_KNOWN: Final = 10201
_NO_STORAGE: Final = frozenset({10023, 10028, 10047})
_NANOSECONDS: Final = 1_000_000_000
_logger = logging.getLogger(__name__)


class Reach(msgspec.Struct, frozen=True):
    """How far a KV log goes: it holds the events from `first` to `last`. `created` tells two logs
    of the same name apart."""

    created: str
    first: Seq
    last: Seq


class BlockLog(Protocol):
    """An ordered record of KV events that forgets its oldest ones. Everything raises Unavailable
    when it cannot be reached."""

    async def append(self, drafts: Sequence[BlockDraft]) -> Seq:
        """Appends all drafts or none, in order and next to one another, durably; returns the
        position of the last one. Safe to repeat with the same ids for two minutes. Raises
        InvalidArgument when an event is too large or there are too many, NoRoom, Unavailable."""
        ...

    def read(
        self, created: str, *, after: Seq, batch_max: int = READ_EVENTS_MAX
    ) -> AsyncGenerator[tuple[Stored, ...], None]:
        """The events after `after` that are still there, in order, and then each new one as it
        comes, in non-empty batches, for ever. Raises Corrupt when the log is not the one that was
        `created` then, or ends before `after`."""
        ...

    async def reach(self) -> Reach:
        """How far it goes; makes it when it is not there."""
        ...

    async def last_cleared(self, node: NodeId) -> Seq:
        """Where the node last began anew; 0 when it never did, or that was forgotten."""
        ...


def pack_drafts(
    cluster: str, drafts: Sequence[BlockDraft], *, bytes_max: int = EVENT_BYTES_MAX
) -> tuple[Entry, ...]:
    """The entries of one append. Raises InvalidArgument for one that no log could take."""
    if len(drafts) > APPEND_EVENTS_MAX:
        raise InvalidArgument(
            f"An append of {len(drafts)} events is too large.",
            hint=f"Append at most {APPEND_EVENTS_MAX} at once.",
        )
    return tuple(_entry(cluster, draft, bytes_max) for draft in drafts)


def _entry(cluster: str, draft: BlockDraft, bytes_max: int) -> Entry:
    payload = encode_blocks(draft)
    if len(payload) > bytes_max:
        raise InvalidArgument(
            f"A KV event takes {len(payload)} bytes; the log takes {bytes_max}.",
            hint="Raise max_payload of the NATS server to 8 MB.",
        )
    return Entry(draft.id, _subject_of(cluster, draft.event), payload, draft.at, None)


def _subject_of(cluster: str, event: KvEvent) -> str:
    if isinstance(event, EngineBlockEvent):
        return kv_engine(cluster, event.engine)
    if isinstance(event, BlocksCleared):
        return kv_cleared(cluster, event.node)
    return kv_changed(cluster, event.node)


class JetStreamBlocks:
    """Keeps the contract of `BlockLog` on a connection, which stays the caller's."""

    def __init__(self, connection: Connection, cluster: str) -> None:
        self._connection = connection
        self._cluster = cluster
        self._name = kv_log_name(cluster)
        self._is_made = False

    async def append(self, drafts: Sequence[BlockDraft]) -> Seq:
        """As `BlockLog.append`."""
        limit = min(EVENT_BYTES_MAX, self._connection.nats.max_payload - 1024)
        entries = pack_drafts(self._cluster, drafts, bytes_max=limit)
        await self._ensure_made()
        try:
            return await publish(self._connection, entries)
        except Refused as refusal:
            if refusal.error.err_code != _KNOWN:
                raise explain(refusal.error) from refusal
            return await self._find(entries[-1])
        except Unavailable:
            self._is_made = False  # perhaps somebody deleted it
            raise

    async def _ensure_made(self) -> None:
        self._connection.check_connected()
        if not self._is_made:
            await self.reach()

    async def _find(self, entry: Entry) -> Seq:
        """The position of what is known to be there. Nobody else writes to its subject."""
        last = await self._last_of(entry.subject)
        if last is None or decode_blocks(last.payload, last.seq).id != entry.id:
            raise Conflict(f"Some events of an append to {self._name} are there and some are not.")
        return last.seq

    async def _last_of(self, subject: str) -> Stored | None:
        return await read_message(self._connection, self._name, {"last_by_subj": subject})

    async def read(
        self, created: str, *, after: Seq, batch_max: int = READ_EVENTS_MAX
    ) -> AsyncGenerator[tuple[Stored, ...], None]:
        """As `BlockLog.read`. Close the iterator (`aclose`) to give its place at the server up."""

        async def check() -> State:
            return await check_identity(self._connection, self._name, created)

        batches = read_ordered(
            self._connection, self._name, after, batch_max, check, may_forget=True
        )
        try:
            async for batch in batches:
                yield batch
        finally:
            await batches.aclose()

    async def reach(self) -> Reach:
        """As `BlockLog.reach`. Raises InvalidArgument as well when what has the name cannot be a
        KV log."""
        try:
            info = await read_info(self._connection, self._name)
            if info is None:
                check_version(self._connection)
                await self._create()
                info = await read_info(self._connection, self._name)
        except Refused as refusal:
            raise explain(refusal.error) from refusal
        if info is None:
            raise Corrupt(f"The KV log {self._name} is gone again.", hint="Who deletes it?")
        _check_config(self._name, info)
        self._is_made = True
        return Reach(info.created, Seq(info.state.first_seq), Seq(info.state.last_seq))

    async def _create(self) -> None:
        """Makes it; smaller than it should be when the server has no room for that."""
        size_bytes, age_s = limits()
        while True:
            config = log_config(self._name, kv_subjects(self._cluster)) | {
                "discard": "old",
                "max_bytes": size_bytes,
                "max_age": age_s * _NANOSECONDS,
            }
            try:
                return await create(self._connection, config)
            except Refused as refusal:
                if refusal.error.err_code not in _NO_STORAGE or size_bytes // 2 < LOG_BYTES_MIN:
                    raise
            size_bytes //= 2
            _logger.warning("no room for the KV log: trying with %d MiB", size_bytes >> 20)

    async def last_cleared(self, node: NodeId) -> Seq:
        """As `BlockLog.last_cleared`."""
        await self._ensure_made()
        found = await self._last_of(kv_cleared(self._cluster, node))
        return found.seq if found else Seq(0)


def limits() -> tuple[int, int]:
    """Bytes and seconds that a new KV log keeps: $TENSORCAST_KV_LOG_BYTES (512 MiB) and
    $TENSORCAST_KV_LOG_AGE_S (one day). Raises InvalidArgument."""
    return (
        _limit("TENSORCAST_KV_LOG_BYTES", LOG_BYTES, LOG_BYTES_MIN),
        _limit("TENSORCAST_KV_LOG_AGE_S", LOG_AGE_S, 60),
    )


def _limit(name: str, default: int, least: int) -> int:
    text = os.environ.get(name) or str(default)
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise InvalidArgument(f"{name} is {text!r}.", hint=f"Give a number, {least} or more.")
    return int(text)


def _check_config(name: str, info: Info) -> None:
    config = info.config
    if config.storage != "file" or config.retention != "limits" or not config.allow_atomic:
        raise InvalidArgument(
            f"The JetStream object {name} cannot hold a KV log.",
            hint="It must be kept in files, with limits, and take atomic batches. Remove it.",
        )
