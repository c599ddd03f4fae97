"""Writing on this node: a segment is lent out, filled by an application, checked, and registered
in one append. Until that append nothing is known of it, and whatever fails gives the segment back.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Final

from tensorcast.log.execute import Appender, execute
from tensorcast.log.follower import Follower
from tensorcast.movers.journal import Journal
from tensorcast.movers.memory.memfd import Segment
from tensorcast.movers.memory.pool import Pool
from tensorcast.movers.memory.verify import verify_chunks
from tensorcast.movers.reports import Life
from tensorcast.movers.residents import Phase, Residents
from tensorcast.movers.room import Room
from tensorcast.movers.threads import in_thread
from tensorcast.schema.aggregates.artifact import ArtifactStatus
from tensorcast.schema.aggregates.key import KeyStatus
from tensorcast.schema.aggregates.replica import ReplicaStatus
from tensorcast.schema.cluster import decide
from tensorcast.schema.commands import Command, CompleteReplica, MoveKey, SealArtifact
from tensorcast.schema.errors import (
    Corrupt,
    InvalidArgument,
    NotFound,
    OutOfCapacity,
    Timeout,
    Unavailable,
)
from tensorcast.schema.ids import ArtifactId, ReplicaId, Tier, parse_key, replica_id
from tensorcast.schema.socket import NO_SESSION, Prepare, Prospect, PutSealed, SealPut
from tensorcast.schema.tensors import SIZE_BYTES_MAX, check_manifest

UNMAP_S_MAX: Final = 1.0
LOOK_AGAIN_S: Final = 0.01
SETTLE_S_MAX: Final = 10.0
RETRY_S: Final = 1.0
_ARTIFACT_ID = re.compile(r"[0-9a-f]{40}")

_logger = logging.getLogger(__name__)


class Put:
    """A segment that an application fills; `owner` stands for its connection."""

    def __init__(self, session: int, segment: Segment, is_zero: bool, owner: object) -> None:
        self.session = session
        self.segment = segment
        self.is_zero = is_zero
        self.owner = owner


class Puts:
    """The open puts of a node."""

    def __init__(
        self,
        residents: Residents,
        room: Room,
        drop_idle: Callable[[], Awaitable[None]],
        pool: Pool,
        journal: Journal,
        log: Appender,
        follower: Follower,
        life: Life,
        *,
        puts_max: int,
    ) -> None:
        self._residents = residents
        self._room = room
        self._drop_idle = drop_idle
        self._pool = pool
        self._journal = journal
        self._log = log
        self._follower = follower
        self._life = life
        self._puts_max = puts_max
        self._puts: dict[int, Put] = {}
        self._opening = 0
        self._last_session = 0
        self._sealing: set[asyncio.Future[PutSealed]] = set()
        self._doubts: set[asyncio.Task[None]] = set()

    @property
    def total(self) -> int:
        """How many puts are open."""
        return len(self._puts) + self._opening

    def foresee(self, request: Prepare) -> Prospect:
        """What awaits a put, as far as is known here. Raises OutOfCapacity for one that never
        fits, and InvalidArgument."""
        _check_size(request.size_bytes)
        fits = self._room.fits(request.size_bytes)
        state = None if request.key is None else self._follower.view.keys.get(request.key)
        is_set = state is not None and state.status is KeyStatus.SET
        return Prospect(key_artifact=state.artifact if state and is_set else None, fits=fits)

    async def open(self, size_bytes: int, owner: object) -> Put:
        """Lends a segment of at least `size_bytes`. Raises OutOfCapacity, also when too many puts
        are open, and InvalidArgument."""
        _check_size(size_bytes)
        if self.total >= self._puts_max:
            raise OutOfCapacity(
                f"{self.total} puts are open on node {self._life.node}; more are not taken.",
                hint="Finish some of them first.",
                node=self._life.node,
            )
        self._opening += 1
        try:
            lent = await self._room.find(size_bytes, self._drop_idle)
        finally:
            self._opening -= 1
        self._last_session += 1
        put = Put(self._last_session, lent.segment, lent.is_zero, owner)
        self._puts[put.session] = put
        return put

    def abort(self, session: int, owner: object) -> None:
        """Gives the segment back. Safe to repeat. Raises InvalidArgument for somebody else's."""
        if session in self._puts:
            self._pool.release(self._take(session, owner).segment)

    def abandon(self, owner: object) -> None:
        """Aborts all puts of a connection that has ended."""
        for put in [put for put in self._puts.values() if put.owner is owner]:
            self.abort(put.session, owner)

    async def seal(self, request: SealPut, owner: object, actor: str) -> PutSealed:
        """Makes an artifact of what was written. Raises Corrupt when the bytes are not what the
        manifest says, InvalidArgument, Conflict (of the key); then nothing is registered and the
        put is over. Without a session, NotFound unless the artifact is here already."""
        if request.session == NO_SESSION:
            return await self._seal_held(request, actor)
        put = self._take(request.session, owner)
        # Once begun it is finished, whatever becomes of the connection: no half-known segments.
        sealing = asyncio.ensure_future(self._seal(put.segment, request, actor))
        self._sealing.add(sealing)
        sealing.add_done_callback(self._sealing.discard)
        return await asyncio.shield(sealing)

    async def finished(self) -> None:
        """Returns when no seal is under way."""
        while self._sealing:
            await asyncio.wait(self._sealing)
        for doubt in self._doubts:
            doubt.cancel()

    def _take(self, session: int, owner: object) -> Put:
        put = self._puts.get(session)
        if put is None or put.owner is not owner:
            raise InvalidArgument(
                f"There is no put {session} on this connection.",
                hint="A put ends with its first seal, with an abort, or with its connection.",
            )
        return self._puts.pop(session)

    async def _seal(self, segment: Segment, request: SealPut, actor: str) -> PutSealed:
        is_in_use = False
        try:
            await self._check(segment, request)
            if self._residents.find_ready(request.artifact) is not None:
                return await self._register_key(request, actor)
            await self._settle_reports()
            is_in_use = True
            return await self._register(segment, request, actor)
        finally:
            if not is_in_use:
                self._pool.release(segment)

    async def _seal_held(self, request: SealPut, actor: str) -> PutSealed:
        """No bytes come: a conflict is told first, and then only names are left to be set."""
        _check_names(request)
        await self._follower.wait_for(await self._log.last_seq(), SETTLE_S_MAX)
        for command in _key_commands(request):
            decide(self._follower.view, command)
        if not self._is_held(request):
            raise NotFound(
                f"Node {self._life.node} does not hold artifact {request.artifact}.",
                hint="Put its bytes.",
                artifact=request.artifact,
                node=self._life.node,
            )
        return await self._register_key(request, actor)

    def _is_held(self, request: SealPut) -> bool:
        """Whether exactly this is here, and will not go because it was evicted or removed."""
        resident = self._residents.find_ready(request.artifact)
        replica = self._follower.view.replicas.get(self._replica(request.artifact))
        artifact = self._follower.view.artifacts.get(request.artifact)
        return (
            resident is not None
            and resident.manifest == request.manifest
            and replica is not None
            and replica.status is ReplicaStatus.READY
            and artifact is not None
            and artifact.status is ArtifactStatus.SEALED
        )

    async def _check(self, segment: Segment, request: SealPut) -> None:
        _check_names(request)
        check_manifest(request.manifest)
        if request.manifest.size_bytes > segment.capacity_bytes:
            raise InvalidArgument("The manifest is larger than the segment of the put.")
        await self._wait_for_unmap(segment)
        good = await in_thread(verify_chunks, segment.memory, request.manifest)
        if len(good) != request.manifest.chunks_total:
            raise Corrupt(
                f"{request.manifest.chunks_total - len(good)} chunks do not match their digests.",
                hint="The tensors may have been written to during the put: put them again.",
                artifact=request.artifact,
                node=self._life.node,
            )

    async def _wait_for_unmap(self, segment: Segment) -> None:
        """What is sealed must not change: nobody may have it mapped for writing any more."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + UNMAP_S_MAX
        while segment.is_mapped():
            if loop.time() > deadline:
                raise InvalidArgument(
                    "The segment of the put is still mapped.",
                    hint="Unmap it and close its descriptor before sealing.",
                )
            await asyncio.sleep(LOOK_AGAIN_S)

    async def _register_key(self, request: SealPut, actor: str) -> PutSealed:
        """The bytes are here already: only names are left to be set."""
        outcome = await execute(
            self._log,
            self._follower,
            [_seal_command(request), *_key_commands(request)],
            actor=actor,
        )
        return PutSealed(
            artifact=request.artifact,
            replica=self._replica(request.artifact),
            seq=outcome.seq,
            existed=True,
        )

    async def _register(self, segment: Segment, request: SealPut, actor: str) -> PutSealed:
        """One append for artifact, replica and key. The journal knows the segment before, so that
        a crash right after the append loses nothing."""
        replica = self._replica(request.artifact)
        await self._journal.keep_segment(replica, segment.name)
        commands = [_seal_command(request), self._complete(request), *_key_commands(request)]
        try:
            outcome = await execute(self._log, self._follower, commands, actor=actor)
        except (Unavailable, Timeout):
            self._doubt(segment, request.artifact)
            raise
        except BaseException:
            await self._undo(segment, request.artifact)
            raise
        await self._accept(segment, request.artifact)
        return PutSealed(artifact=request.artifact, replica=replica, seq=outcome.seq, existed=False)

    async def _settle_reports(self) -> None:
        """What is reported of an earlier replica must be decided before the new one appears."""
        try:
            async with asyncio.timeout(SETTLE_S_MAX):
                await self._journal.settled()
        except TimeoutError:
            raise Unavailable(
                f"Node {self._life.node} cannot reach the log.",
                hint="Is the NATS server well? `tcctl status` says.",
                node=self._life.node,
            ) from None

    async def _accept(self, segment: Segment, artifact: ArtifactId) -> None:
        await self._residents.add(self._follower.view.artifacts[artifact], segment, Phase.READY)

    async def _undo(self, segment: Segment, artifact: ArtifactId) -> None:
        replica, resident = self._replica(artifact), self._residents.find(artifact)
        self._pool.release(segment)
        if resident is not None:
            await self._journal.keep_segment(replica, resident.segment.name)
        else:
            await self._journal.forget_segment(replica)

    def _doubt(self, segment: Segment, artifact: ArtifactId) -> None:
        task = asyncio.ensure_future(self._resolve(segment, artifact))
        self._doubts.add(task)
        task.add_done_callback(self._doubts.discard)

    async def _resolve(self, segment: Segment, artifact: ArtifactId) -> None:
        """It is not known whether the append happened: asks the log until it answers."""
        while True:
            try:
                view = await self._follower.wait_for(await self._log.last_seq(), RETRY_S)
                break
            except (Unavailable, Timeout):
                await asyncio.sleep(RETRY_S)
        found = view.replicas.get(self._replica(artifact))
        if found is not None and found.status is ReplicaStatus.READY:
            await self._accept(segment, artifact)
        else:
            await self._undo(segment, artifact)
        _logger.info("the put of %s %s", artifact, "was" if found else "was not registered")

    def _replica(self, artifact: ArtifactId) -> ReplicaId:
        return replica_id(artifact, self._life.node, Tier.DRAM)

    def _complete(self, request: SealPut) -> CompleteReplica:
        return CompleteReplica(
            replica=self._replica(request.artifact),
            artifact=request.artifact,
            node=self._life.node,
            tier=Tier.DRAM,
            epoch=self._life.epoch,
            chunks_total=request.manifest.chunks_total,
        )


def _check_size(size_bytes: int) -> None:
    if not 0 <= size_bytes <= SIZE_BYTES_MAX:
        raise InvalidArgument(f"{size_bytes} bytes is not a possible size of an artifact.")


def _check_names(request: SealPut) -> None:
    if not _ARTIFACT_ID.fullmatch(request.artifact):
        raise InvalidArgument(f"{request.artifact!r} is not an artifact id.")
    if request.key is not None:
        parse_key(request.key)


def _seal_command(request: SealPut) -> SealArtifact:
    return SealArtifact(
        artifact=request.artifact,
        kind=request.kind,
        manifest=request.manifest,
        labels=request.labels,
    )


def _key_commands(request: SealPut) -> list[Command]:
    if request.key is None:
        return []
    return [MoveKey(key=request.key, artifact=request.artifact, expect=request.expect)]
