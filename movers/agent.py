"""Issued operations in, events out: the shell that watches the log and runs this node's work."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from tensorcast.log.follower import Follower, Subscription
from tensorcast.log.jetstream import JetStreamLog
from tensorcast.movers.core.absence import remember_damage
from tensorcast.movers.core.holdings import operations_for
from tensorcast.movers.disk_pulls import DiskPulls
from tensorcast.movers.fills import Fills
from tensorcast.movers.journal import Journal
from tensorcast.movers.operations import Operations
from tensorcast.movers.pulls import Moved, moved_before
from tensorcast.movers.reports import Life, Reporter
from tensorcast.schema.aggregates.operation import Operation, OperationStatus
from tensorcast.schema.commands import Command, FailOperation, StartOperation, SucceedOperation
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.errors import TensorCastError, Unavailable
from tensorcast.schema.events import (
    NodeJoined,
    NodeLost,
    OperationCancelled,
    OperationFailed,
    OperationIssued,
    OperationRetried,
    OperationSucceeded,
)
from tensorcast.schema.faults import Fault, FaultKind, from_error
from tensorcast.schema.ids import EventId, OperationId, Seq, Tier
from tensorcast.schema.work import Evict, Persist, target_tier

IDLE_S_MAX: Final = 60.0
WRITES_MAX: Final = 2
"""Replicas that are written to the disk at once; more would only slow each other."""

_logger = logging.getLogger(__name__)


class Fenced(Exception):
    """A newer life of this node is in the log: this one must not do anything any more."""


class _Running:
    """A task, and whether the log has cancelled its operation."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self.task = task
        self.is_cancelled = False


class Agent:
    """Watches from its construction on (before the follower runs); runs operations from `start`
    to `stop`. `lost` is set when the log has declared this life of the node lost."""

    def __init__(
        self,
        follower: Follower,
        journal: Journal,
        reporter: Reporter,
        operations: Operations,
        fills: Fills,
        disk_pulls: DiskPulls,
        life: Life,
        *,
        operations_max: int,
    ) -> None:
        self.lost = asyncio.Event()
        self._follower = follower
        self._journal = journal
        self._reporter = reporter
        self._operations = operations
        self._fills = fills
        self._disk_pulls = disk_pulls
        self._life = life
        self._subscription = follower.subscribe()
        self._watched = follower.view.at
        self._moved = asyncio.Event()
        self._slots = asyncio.Semaphore(operations_max)
        self._writes = asyncio.Semaphore(WRITES_MAX)
        self._running: dict[OperationId, _Running] = {}
        self._causes: dict[OperationId, EventId] = {}
        self._tasks: asyncio.TaskGroup | None = None

    @property
    def running(self) -> int:
        """Operations under way, those that wait for their turn included."""
        return len(self._running)

    async def watch(self) -> None:
        """Follows the log for ever. Raises Fenced."""
        while True:
            try:
                await self._consume(self._subscription)
            except Unavailable as error:  # it fell behind: look at the whole view instead
                _logger.warning("%s", error)
                self._subscription = self._follower.subscribe()
                self._launch_all()

    async def recall(self, log: JetStreamLog) -> None:
        """Finds why the open operations of this node are to be run, which a life that does not
        read the log from its first event has not seen. Raises Unavailable."""
        for operation in operations_for(self._follower.view, self._life.node):
            cause = await log.find_issue(operation.id, operation.version)
            if cause is not None:
                self._causes.setdefault(operation.id, cause)

    async def watched(self, seq: Seq) -> None:
        """Returns when the watcher has seen event `seq`."""
        while self._watched < seq:
            await self._moved.wait()

    async def _consume(self, subscription: Subscription) -> None:
        async for _, recorded in subscription:
            self._watched = recorded.seq
            self._journal.observe(recorded)
            self._notice(recorded)
            self._moved.set()
            self._moved = asyncio.Event()

    def _notice(self, recorded: Recorded) -> None:
        node = self._life.node
        match recorded.event:
            case OperationIssued(node=owner, operation=operation) if owner == node:
                self._causes[operation] = recorded.id
                self._launch(operation)
            case OperationRetried(operation=operation) if self._is_ours(operation):
                self._causes[operation] = recorded.id
                self._launch(operation)
            case OperationCancelled(operation=operation):
                self._causes.pop(operation, None)
                self._cancel(operation)
            case OperationSucceeded(operation=operation) | OperationFailed(operation=operation):
                self._causes.pop(operation, None)
            case NodeJoined(node=owner, epoch=epoch) if owner == node and self._life.epoch:
                if epoch > self._life.epoch:
                    raise Fenced(f"Node {node} has joined again, as epoch {epoch}.")
            case NodeLost(node=owner, epoch=epoch) if owner == node and epoch == self._life.epoch:
                self.lost.set()
            case _:
                pass

    def _is_ours(self, operation: OperationId) -> bool:
        found = self._follower.view.operations.get(operation)
        return found is not None and found.node == self._life.node

    def _cancel(self, operation: OperationId) -> None:
        """An eviction that has begun is not stopped half-way: nobody may read it any more."""
        running = self._running.get(operation)
        found = self._follower.view.operations[operation]
        if running is not None and not isinstance(found.work, Evict):
            running.is_cancelled = True
            running.task.cancel()

    # ---- running ---------------------------------------------------------------------------

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Runs what is open, and from now on what is issued."""
        self._tasks = tasks
        self._launch_all()

    async def stop(self) -> None:
        """Abandons what runs, without a word to the log: it is resumed at the next start."""
        self._tasks = None
        tasks = [running.task for running in self._running.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _launch_all(self) -> None:
        for operation in operations_for(self._follower.view, self._life.node):
            self._launch(operation.id)

    def _launch(self, operation: OperationId) -> None:
        if self._tasks is not None and operation not in self._running:
            task = self._tasks.create_task(self._live(operation), name=operation)
            self._running[operation] = _Running(task)

    async def _live(self, id_: OperationId) -> None:
        running = self._running.get(id_)
        operation = self._follower.view.operations[id_]
        try:
            # What makes room must never wait behind those that wait for room.
            if isinstance(operation.work, Evict):
                await self._run(operation)
            else:
                is_write = isinstance(operation.work, Persist)
                async with self._writes if is_write else self._slots:
                    await self._run(operation)
        except asyncio.CancelledError:
            if running is None or not running.is_cancelled:
                raise
            if target_tier(operation.work) is Tier.DRAM:
                await self._fills.discard(operation.work.artifact)
        finally:
            self._running.pop(id_, None)
        latest = self._follower.view.operations[id_]
        if latest.status is OperationStatus.ISSUED and latest.attempt > operation.attempt:
            self._launch(id_)

    async def _run(self, operation: Operation) -> None:
        start = StartOperation(operation=operation.id, epoch=self._life.epoch)
        started = await self._reporter.report([start], self._causes.get(operation.id))
        try:
            if not isinstance(operation.work, Evict):  # which may be what makes the room
                await self._journal.check_room()
            moved = await self._operations.do(operation.work, started)
        except TensorCastError as error:
            fault = remember_damage(operation.fault, from_error(error))
            end = self._failed(operation, fault, moved_before(error))
        except Exception as error:
            _logger.exception("operation %s broke", operation.id)
            fault = Fault(kind=FaultKind.INVALID, detail=f"Internal error: {error!r}.")
            end = self._failed(operation, fault)
        else:
            end = self._succeeded(operation, moved)
        await self._reporter.report([end], started)

    def _succeeded(self, operation: Operation, moved: Moved) -> Command:
        return SucceedOperation(
            operation=operation.id,
            epoch=self._life.epoch,
            bytes_moved=moved.size_bytes,
            transports=moved.transports,
            detours=moved.detours,
        )

    def _failed(self, operation: Operation, fault: Fault, moved: Moved | None = None) -> Command:
        _logger.info("operation %s failed: %s", operation.id, fault.detail)
        moved = moved or Moved()
        return FailOperation(
            operation=operation.id,
            epoch=self._life.epoch,
            fault=fault,
            bytes_moved=moved.size_bytes,
            transports=moved.transports,
            detours=moved.detours,
        )

    async def tidy(self) -> None:
        """Drops half-filled replicas that nothing has wanted for a while."""
        await self._fills.discard_idle(IDLE_S_MAX)
        await self._disk_pulls.discard_idle(IDLE_S_MAX)
