"""Watches the KV cache of a vLLM engine: its ZMQ publisher, with what was missed asked again.

The publisher counts its batches. A hole is filled from its replay endpoint; when that has forgotten
what is missing, everything that was known is dropped and the rest is said to be partial, until the
engine clears its cache or starts anew. So what is told of an engine is always true.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final, NamedTuple

import zmq
import zmq.asyncio

from tensorcast.engines.vllm.kv_batches import PAYLOAD_BYTES_MAX, SEQ_BYTES, Batch, decode_batch
from tensorcast.engines.vllm.kv_tracking import Anew, Change, Tracker, Verdict, merge_changes
from tensorcast.engines.vllm.telling import KvLogChanged, Teller
from tensorcast.schema.errors import Corrupt, Unavailable

PROBE_S: Final = 5.0
"""So often an engine that is silent is asked whether something got lost."""
REPLAY_S_MAX: Final = 10.0
REPLAY_TRIES: Final = 3
GATHER_S: Final = 0.05
"""Batches that come within so long are told together."""
GATHERED_MAX: Final = 1000
QUEUE_BATCHES_MAX: Final = 100_000
UNTOLD: Final = "The engine does not say what it did before it was watched."
END: Final = b"\xff" * SEQ_BYTES
_logger = logging.getLogger(__name__)


class Sources(NamedTuple):
    """Where an engine publishes, and where it repeats what it published (None: nowhere)."""

    events: str
    replay: str | None


class Watcher:
    """Follows one engine and tells what changes. `run` in a task; `tracker` is what is known."""

    def __init__(self, sources: Sources, teller: Teller, *, probe_s: float = PROBE_S) -> None:
        self.tracker = Tracker()
        self.state = Anew(is_exact=False, reason="It has just begun to watch.")
        self._sources = sources
        self._teller = teller
        self._probe_s = probe_s
        self._context = zmq.asyncio.Context()
        self._subscriber = self._context.socket(zmq.SUB)
        self._subscriber.set_hwm(QUEUE_BATCHES_MAX)
        self._subscriber.setsockopt(zmq.MAXMSGSIZE, PAYLOAD_BYTES_MAX)
        self._subscriber.subscribe(b"")
        self._monitor: zmq.asyncio.Socket = self._subscriber.get_monitor_socket(zmq.EVENT_CONNECTED)
        self._pending: list[Change] = []

    async def run(self) -> None:
        """Watches for ever. Raises what the cluster finds wrong with what it is told, and
        Unavailable for addresses that cannot be."""
        try:
            try:
                self._subscriber.connect(self._sources.events)
            except zmq.ZMQError as error:
                raise Unavailable(f"{self._sources.events!r} cannot be read: {error}.") from error
            await self._begin()
            while True:
                await self._tell()
                if not await self._subscriber.poll(self._probe_s * 1000):
                    await self._catch_up()  # the last batches may have got lost on their way
                    continue
                await self._gather()
        finally:
            self._context.destroy(linger=0)

    # ---- telling -------------------------------------------------------------------------------

    async def _tell(self) -> None:
        changes, self._pending = merge_changes(self._pending), []
        while changes:
            try:
                return await self._teller.tell(changes, self.tracker.expected, self.tracker.count)
            except KvLogChanged:
                changes = [self.state, *self.tracker.held()]

    def _note(self, *changes: Change) -> None:
        for change in changes:
            if isinstance(change, Anew):
                self.state = change
                _logger.info("the blocks begin anew: %s", change.reason or "a new life")
            self._pending.append(change)

    # ---- reading -------------------------------------------------------------------------------

    async def _gather(self) -> None:
        """Takes what has come, and what comes within a moment."""
        deadline = asyncio.get_running_loop().time() + GATHER_S
        for _ in range(GATHERED_MAX):
            left_s = deadline - asyncio.get_running_loop().time()
            if left_s <= 0 or not await self._subscriber.poll(left_s * 1000):
                return
            frames = await self._subscriber.recv_multipart()
            if len(frames) != 3 or len(frames[1]) != SEQ_BYTES:
                _logger.warning("a message of %d parts is no KV event", len(frames))
                continue
            await self._take(int.from_bytes(frames[1], "big"), frames[2])

    async def _take(self, seq: int, payload: bytes) -> None:
        batch = self._decode(payload)
        if batch is None:
            return
        if await self._has_reconnected():  # perhaps to another life, and numbers tell nothing
            await self._catch_up(REPLAY_TRIES)
        match self.tracker.judge(seq, batch.ts):
            case Verdict.NEXT:
                self._note(*self.tracker.apply(seq, batch))
            case Verdict.GAP:
                _logger.info("batches %d to %d are missing", self.tracker.expected, seq - 1)
                await self._catch_up(REPLAY_TRIES)
                if self.tracker.expected < seq:
                    self._note(self.tracker.lose(seq, "nobody repeats them."))
                if self.tracker.judge(seq, batch.ts) is Verdict.NEXT:
                    self._note(*self.tracker.apply(seq, batch))
            case Verdict.RESTARTED:
                await self._begin()
            case Verdict.OLD:
                pass

    async def _has_reconnected(self) -> bool:
        """Whether the connection to the publisher was made anew since the last time."""
        was_made = False
        while await self._monitor.poll(0):
            await self._monitor.recv_multipart()
            was_made = True
        return was_made

    def _decode(self, payload: bytes) -> Batch | None:
        try:
            return decode_batch(payload)
        except Corrupt as error:  # its number stays missing, so it counts as lost
            _logger.warning("%s", error)
            return None

    async def _begin(self) -> None:
        """Another life of the engine, or of this watcher: everything from the first batch on."""
        self._note(self.tracker.begin())
        if not await self._catch_up(REPLAY_TRIES):
            self._note(self.tracker.lose(self.tracker.expected, UNTOLD))

    async def _catch_up(self, tries: int = 1) -> bool:
        """Takes what the engine repeats, from the last batch that was seen on: that one tells
        whether it is the same life of the engine. Whether it said how far its record goes."""
        if self._sources.replay is None:
            return False
        for _ in range(tries):
            start = max(0, self.tracker.expected - 1)
            try:
                if not await self._replay(self._sources.replay, start):
                    self._note(self.tracker.begin())
                    await self._replay(self._sources.replay, 0)
                return True
            except TimeoutError:
                _logger.warning("%s repeats nothing in time", self._sources.replay)
        return False

    async def _replay(self, endpoint: str, start: int) -> bool:
        """Takes everything from `start` on; False when that is another life of the engine."""
        is_known = self.tracker.expected == 0
        async with aclosing(_ask_again(self._context, endpoint, start)) as batches:
            async for seq, payload in batches:
                batch = self._decode(payload)
                if batch is None:
                    continue
                if seq == self.tracker.expected - 1 and not is_known:
                    if batch.ts != self.tracker.last_ts:
                        return False
                    is_known = True
                    continue
                if seq > self.tracker.expected or not is_known:
                    self._note(self.tracker.lose(seq, "the engine has forgotten them."))
                is_known = True
                if seq == self.tracker.expected:
                    self._note(*self.tracker.apply(seq, batch))
        return is_known


async def _ask_again(
    context: zmq.asyncio.Context, endpoint: str, start: int
) -> AsyncGenerator[tuple[int, bytes], None]:
    """The batches from `start` on that the engine still has, with their numbers. Raises
    TimeoutError."""
    socket = context.socket(zmq.DEALER)
    try:
        socket.setsockopt(zmq.MAXMSGSIZE, PAYLOAD_BYTES_MAX)
        socket.set_hwm(QUEUE_BATCHES_MAX)
        socket.connect(endpoint)
        await socket.send_multipart([b"", start.to_bytes(SEQ_BYTES, "big")])
        while True:
            if not await socket.poll(REPLAY_S_MAX * 1000):
                raise TimeoutError
            frames = await socket.recv_multipart()
            if len(frames) != 4 or len(frames[2]) != SEQ_BYTES:
                continue
            if frames[2] == END:
                return
            yield int.from_bytes(frames[2], "big"), frames[3]
    finally:
        socket.close(linger=0)
