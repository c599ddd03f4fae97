"""Many callers, one writer: their events share the atomic batches of the log.

A log that syncs every acknowledged append gives hundreds of appends a second, but thousands of
events a second in batches; yet a batch takes longer than a few single events. Each caller still
sees its own append alone: all of it or none of it, and never refused because of another caller.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from tensorcast.log.port import APPEND_EVENTS_MAX, Log, NoRoom
from tensorcast.schema.envelope import Draft
from tensorcast.schema.errors import TensorCastError, Unavailable
from tensorcast.schema.events import SignalEvent, aggregate_of
from tensorcast.schema.ids import Seq

LINGER_S = 0.001
ALONE_MAX = 32
"""So many appends of one event cost about as much as the smallest atomic batch: for that JetStream
makes a store of its own on the disk, syncs it five times and removes it (some 9 to 15 ms, where one
event takes 0.4)."""
RETRY_S_MAX = 30.0
TROUBLE_S = 60.0
_PAUSE_S_FIRST = 0.05
_PAUSE_S_MAX = 1.0


class _Request:
    """One caller's append and its answer."""

    def __init__(self, drafts: tuple[Draft, ...]) -> None:
        self.drafts = drafts
        self.aggregates = frozenset(
            aggregate_of(draft.event)
            for draft in drafts
            if not isinstance(draft.event, SignalEvent)  # they are decided on nothing
        )
        self.decided = self.aggregates & {
            aggregate_of(draft.event) for draft in drafts if draft.expected is not None
        }
        self.answer: asyncio.Future[tuple[Seq, ...]] = asyncio.get_running_loop().create_future()

    def resolve(self, seqs: tuple[Seq, ...]) -> None:
        if not self.answer.done():
            self.answer.set_result(seqs)

    def refuse(self, error: TensorCastError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class Writer:
    """`append` as that of a log, merged with those of other callers while a batch is under way.

    Needs `run` in a task. When the log cannot be reached, a batch is repeated with the same event
    ids for `retry_s`; then its callers get Unavailable. A log without room says so at once.
    """

    def __init__(
        self, log: Log, *, linger_s: float = LINGER_S, retry_s: float = RETRY_S_MAX
    ) -> None:
        self._log = log
        self._linger_s = linger_s
        self._retry_s = retry_s
        self._waiting: deque[_Request] = deque()
        self._filled = asyncio.Event()
        self._alone: set[_Request] = set()
        self._ended = asyncio.Event()
        self._closed = False
        self._trouble: str | None = None
        self._failed_s = 0.0

    @property
    def trouble(self) -> str | None:
        """Why the log took nothing at the last try, in words; None when it did, or when the last
        try is so long ago that it says nothing."""
        age_s = asyncio.get_running_loop().time() - self._failed_s
        return self._trouble if age_s < TROUBLE_S else None

    async def append(self, drafts: Sequence[Draft]) -> tuple[Seq, ...]:
        """As `Log.append`."""
        if self._closed:
            raise Unavailable("The writer has stopped.", hint="The process is about to end.")
        if len(drafts) > APPEND_EVENTS_MAX:
            return await self._log.append(drafts)  # it says why not
        request = _Request(tuple(drafts))
        self._waiting.append(request)
        self._filled.set()
        return await request.answer

    async def last_seq(self) -> Seq:
        """As `Log.last_seq`."""
        return await self._log.last_seq()

    async def run(self) -> None:
        """Writes for ever: one batch at a time, or a few events of different things close behind
        each other, which is faster. When it is cancelled, those who wait get Unavailable: their
        append may or may not have happened."""
        batch: list[_Request] = []
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    await self._filled.wait()
                    await asyncio.sleep(self._linger_s)
                    batch = self._take()
                    if not _may_go_alone((*self._alone, *batch)):
                        await self._wait_for_those_alone()
                    if not _may_go_alone(batch):
                        await self._write(batch)
                        continue
                    self._alone.update(batch)
                    for request in batch:
                        tasks.create_task(self._write_alone(request))
        finally:
            self._closed = True
            for request in (*self._alone, *batch, *self._waiting):
                request.refuse(Unavailable("The writer stopped before it had an answer."))

    async def _wait_for_those_alone(self) -> None:
        while self._alone:
            self._ended.clear()
            await self._ended.wait()

    async def _write_alone(self, request: _Request) -> None:
        await self._write((request,))
        self._alone.discard(request)
        self._ended.set()

    def _take(self) -> list[_Request]:
        """The next callers that fit one batch. One that has decided on an aggregate never shares it
        with another that touches that aggregate before: it knows nothing of those events."""
        batch: list[_Request] = []
        touched: set[object] = set()
        size = 0
        while self._waiting:
            request = self._waiting[0]
            if request.answer.done():  # its caller was cancelled
                self._waiting.popleft()
                continue
            size += len(request.drafts)
            if batch and (size > APPEND_EVENTS_MAX or touched & request.decided):
                break
            touched |= request.aggregates
            batch.append(self._waiting.popleft())
        if not self._waiting:
            self._filled.clear()
        return batch

    async def _write(self, batch: Sequence[_Request]) -> None:
        """Appends the batch; when it is refused, halves it until only the guilty are refused."""
        if not batch:
            return
        drafts = [draft for request in batch for draft in request.drafts]
        try:
            seqs = await self._append_surely(drafts)
        except TensorCastError as error:
            if len(batch) == 1 or error.retryable:
                for request in batch:
                    request.refuse(error)
                return
            middle = len(batch) // 2
            await self._write(batch[:middle])
            await self._write(batch[middle:])
            return
        start = 0
        for request in batch:
            end = start + len(request.drafts)
            request.resolve(seqs[start:end])
            start = end

    async def _append_surely(self, drafts: Sequence[Draft]) -> tuple[Seq, ...]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._retry_s
        pause_s = _PAUSE_S_FIRST
        while True:
            try:
                seqs = await self._log.append(drafts)
            except Unavailable as error:
                self._trouble, self._failed_s = str(error), loop.time()
                if isinstance(error, NoRoom) or loop.time() + pause_s > deadline:
                    raise
            else:
                self._trouble = None
                return seqs
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)


def _may_go_alone(requests: Sequence[_Request]) -> bool:
    """Whether these are few, each of one event, and nothing is said of one thing twice: so it does
    not matter which of them comes first."""
    if len(requests) > ALONE_MAX or any(len(request.drafts) > 1 for request in requests):
        return False
    touched = [aggregate for request in requests for aggregate in request.aggregates]
    return len(touched) == len(set(touched))
