"""Reading on this node: what is asked for is found, brought here if need be, and granted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

import msgspec

from tensorcast.log.execute import Appender, execute
from tensorcast.log.follower import Follower
from tensorcast.log.identity import new_event_id
from tensorcast.movers.core.holdings import (
    choose_demand,
    is_open,
    operation_making,
    resolve_artifact,
)
from tensorcast.movers.core.supply import DEMAND, peers_with
from tensorcast.movers.excerpts import Excerpt, Excerpts
from tensorcast.movers.gpu_room import GpuResident, GpuRoom
from tensorcast.movers.journal import Journal
from tensorcast.movers.locks import Locks
from tensorcast.movers.memory.handover import Lifelines
from tensorcast.movers.memory.memfd import Segment
from tensorcast.movers.operations import Operations
from tensorcast.movers.pending import Pending
from tensorcast.movers.reports import Life
from tensorcast.movers.residents import Phase, Resident, Residents
from tensorcast.schema.aggregates.artifact import Artifact
from tensorcast.schema.aggregates.operation import Operation, OperationStatus
from tensorcast.schema.authorization import check_artifact
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.commands import IssueOperation
from tensorcast.schema.errors import Cancelled, NotFound, Timeout, Unavailable
from tensorcast.schema.faults import to_error
from tensorcast.schema.ids import ArtifactId, OperationId, Seq, Tier, derive_operation_id
from tensorcast.schema.namespaces import Right
from tensorcast.schema.socket import Follow
from tensorcast.schema.work import Work

FETCHES_MAX: Final = 3
TIMEOUT_S_MAX: Final = 86_400.0
FOLLOW_S_MAX: Final = 30.0
FOLLOW_STEP_S: Final = 0.01
FOLLOW_IDLE_S: Final = 1.0
"""So long an operation may take to be known here, or another one to be issued."""


class GpuGrant(msgspec.Struct, frozen=True):
    """A reader's lifeline of what lies on a device; the caller closes its copy after sending it."""

    resident: GpuResident
    lifeline_fd: int


class Grant(msgspec.Struct, frozen=True):
    """A reader's descriptors, of which the caller closes its copies after sending them."""

    resident: Resident | Excerpt
    segment_fd: int
    lifeline_fd: int


class Readers:
    """Grants read-only descriptors of residents. `is_away`: nothing can be appended to the log."""

    def __init__(
        self,
        residents: Residents,
        lifelines: Lifelines,
        log: Appender,
        follower: Follower,
        life: Life,
        pending: Pending,
        journal: Journal,
        excerpts: Excerpts,
        operations: Operations,
        is_away: Callable[[], bool],
        gpus: GpuRoom,
    ) -> None:
        self._gpus = gpus
        self._operations = operations
        self._is_away = is_away
        self._excerpts = excerpts
        self._residents = residents
        self._lifelines = lifelines
        self._log = log
        self._follower = follower
        self._life = life
        self._pending = pending
        self._journal = journal
        self._issuing = Locks()

    async def read(
        self,
        what: str,
        after: Seq,
        timeout_s: float,
        actor: str,
        *,
        in_part: bool = False,
        chunks: ChunkSet | None = None,
        user: str = "",
    ) -> Grant:
        """Grants the artifact that a key or id stands for, as of event `after` or later. Makes a
        replica first when the node has none; `in_part`: begins to make it; `chunks`: or an excerpt
        with these in it. Raises NotFound, Timeout, Cancelled, or what the fault of the operation
        stands for; PermissionDenied when the rules do not let `user` read it; OutOfCapacity when
        the disk is too full for the journal of this work."""
        try:
            async with asyncio.timeout(min(timeout_s, TIMEOUT_S_MAX)):
                await self._pending.settle_key(what)
                artifact = await self._resolve(what, after)
                check_artifact(self._follower.view, user, artifact.id, Right.READ)
                if chunks is not None and self._takes_excerpt(artifact.id, chunks):
                    return self._grant(await self._excerpts.bring(artifact, chunks))
                return self._grant(await self._bring(artifact.id, actor, in_part))
        except TimeoutError:
            raise Timeout(
                f"{what!r} did not arrive on node {self._life.node} in {timeout_s:g} s.",
                hint="`tcctl op ls` shows how far it is; ask again to go on waiting.",
                node=self._life.node,
            ) from None

    async def read_gpu(self, what: str, after: Seq, timeout_s: float, user: str) -> GpuGrant | None:
        """As `read`, of what a device of the node has; None: none has all of it."""
        if not self._gpus.all():
            return None
        async with asyncio.timeout(min(timeout_s, TIMEOUT_S_MAX)):
            await self._pending.settle_key(what)
            artifact = await self._resolve(what, after)
        check_artifact(self._follower.view, user, artifact.id, Right.READ)
        found = self._gpus.find_ready(artifact.id)
        if found is None:
            return None
        found.used_at = time.monotonic()
        return GpuGrant(found, self._lifelines.grant(found.segment.name))

    async def _resolve(self, what: str, after: Seq) -> Artifact:
        view = self._follower.view
        if view.at < after:
            view = await self._follower.wait_for(after, TIMEOUT_S_MAX)
        try:
            return resolve_artifact(view, what)
        except NotFound:  # perhaps the log knows more than we do
            last = await self._log.last_seq()
            return resolve_artifact(await self._follower.wait_for(last, TIMEOUT_S_MAX), what)

    async def follow(self, request: Follow) -> ChunkSet:
        """The chunks of a replica that was granted in part, once there are more, or it is late.
        Raises Unavailable when that replica will not be filled."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + min(request.timeout_s, FOLLOW_S_MAX)
        idle_at = clock()
        while True:
            resident = self._residents.find(request.artifact)
            if resident is None or resident.segment.name != request.segment:
                raise _lost(request, self._life)
            if len(resident.chunks) > request.have or clock() > deadline:
                return resident.chunks
            if self._is_filling(resident):
                idle_at = clock()
            elif clock() - idle_at > FOLLOW_IDLE_S:
                raise _lost(request, self._life)
            # Chunks are told to the threads of peers, not to this loop: looking costs less.
            await asyncio.sleep(FOLLOW_STEP_S)

    def _is_filling(self, resident: Resident) -> bool:
        view, node = self._follower.view, self._life.node
        is_made = operation_making(view, resident.id, node, Tier.DRAM) is not None
        return is_made or resident.phase is not Phase.FILLING

    async def _bring(self, artifact: ArtifactId, actor: str, in_part: bool) -> Resident:
        for _ in range(FETCHES_MAX):
            await self._residents.wait_until(lambda: not self._residents.is_pending(artifact))
            resident = self._residents.find_ready(artifact)
            if resident is not None:
                return resident
            await self._fetch(artifact, actor, in_part)
            begun = self._residents.find(artifact) if in_part else None
            if begun is not None and begun.phase is not Phase.CHECKING:
                return begun
        raise Unavailable(
            f"Artifact {artifact} is dropped as soon as it arrives on node {self._life.node}.",
            hint="The node's memory is too small for what is used at the same time.",
            artifact=artifact,
            node=self._life.node,
        )

    async def _fetch(self, artifact: ArtifactId, actor: str, in_part: bool) -> None:
        """Joins the operation that is making the replica, or issues one, and waits for its end or
        for the replica (`in_part`: its segment), whichever is first."""
        async with self._issuing.alone(artifact):  # of many readers, one issues it
            view, node = self._follower.view, self._life.node
            operation = operation_making(view, artifact, node, Tier.DRAM)
            if self._is_away():
                return await self._fetch_alone(artifact)
            if operation is None and self._residents.find_ready(artifact) is None:
                await self._journal.check_room()
                operation = await self._issue(artifact, actor)
        if operation is not None:
            await self._wait_for(artifact, operation, in_part)

    async def _fetch_alone(self, artifact: ArtifactId) -> None:
        """What an operation would do, while none can be issued. The log hears what becomes of the
        replica when it is back."""
        await self._journal.check_room()
        await self._operations.do(self._choose(artifact), None)

    def _choose(self, artifact: ArtifactId) -> Work:
        view, node = self._follower.view, self._life.node
        is_served = bool(peers_with(view, artifact, node))
        return choose_demand(view, artifact, node, is_served=is_served)

    async def _wait_for(self, artifact: ArtifactId, operation: OperationId, in_part: bool) -> None:
        find = self._residents.find if in_part else self._residents.find_ready
        ready = asyncio.ensure_future(
            self._residents.wait_until(lambda: find(artifact) is not None)
        )
        ended = asyncio.ensure_future(
            self._follower.wait_until(lambda view: not is_open(view, operation), TIMEOUT_S_MAX)
        )
        stuck = asyncio.ensure_future(self._journal.stuck())
        try:
            await asyncio.wait([ready, ended, stuck], return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
            ended.cancel()
            stuck.cancel()
        if find(artifact) is None:
            if stuck.done() and not stuck.cancelled() and not ended.done():
                raise stuck.result()
            self._raise_fault(self._follower.view.operations[operation])

    async def _issue(self, artifact: ArtifactId, actor: str) -> OperationId:
        operation = derive_operation_id(new_event_id(), DEMAND, 0)
        issue = IssueOperation(
            operation=operation, node=self._life.node, work=self._choose(artifact), policy=DEMAND
        )
        await execute(self._log, self._follower, [issue], actor=actor)
        return operation

    def _raise_fault(self, operation: Operation) -> None:
        if operation.status is OperationStatus.CANCELLED:
            raise Cancelled(
                f"Operation {operation.id} was cancelled.",
                artifact=operation.work.artifact,
                node=operation.node,
                operation=operation.id,
            )
        if operation.fault is not None and operation.status is OperationStatus.FAILED:
            raise to_error(
                operation.fault,
                artifact=operation.work.artifact,
                node=operation.node,
                operation=operation.id,
            )

    def lend(self, segment: Segment) -> tuple[int, int]:
        """A descriptor of a segment that can only be read, and a lifeline; the caller closes its
        copies."""
        return segment.open_read_only(), self._lifelines.grant(segment.name)

    def _takes_excerpt(self, artifact: ArtifactId, chunks: ChunkSet) -> bool:
        """Whether a reader gets an excerpt: one that has begun with it does, and one that begins
        where nothing of the artifact is, or comes."""
        if self._excerpts.has(artifact) and chunks.ranges:
            return True
        residents, view, node = self._residents, self._follower.view, self._life.node
        return not (
            residents.find(artifact)
            or residents.is_pending(artifact)
            or residents.is_on_disk(artifact)
            or operation_making(view, artifact, node, Tier.DRAM)
            or not peers_with(view, artifact, node)
        )

    def _grant(self, resident: Resident | Excerpt) -> Grant:
        resident.used_at = time.monotonic()
        self._residents.uses.note(resident.id)
        return Grant(resident, *self.lend(resident.segment))


def _lost(request: Follow, life: Life) -> Unavailable:
    return Unavailable(
        f"Artifact {request.artifact} will not be filled on node {life.node}.",
        hint="Ask for it again.",
        artifact=request.artifact,
        node=life.node,
    )
