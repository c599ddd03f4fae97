"""From written bytes to a registered artifact: digested when nobody can change them any more, and
entered into the log in one append. Until that append nothing is known of it, and whatever fails
gives the segment back.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, TypeVar

from msgspec import structs

from tensorcast.log.execute import Appender, Outcome, execute
from tensorcast.log.follower import Follower
from tensorcast.movers.journal import Journal
from tensorcast.movers.memory.digesting import Digester
from tensorcast.movers.memory.memfd import Segment
from tensorcast.movers.memory.pool import Pool
from tensorcast.movers.reports import Life
from tensorcast.movers.residents import Phase, Residents
from tensorcast.movers.threads import in_thread
from tensorcast.schema.aggregates.artifact import ArtifactStatus
from tensorcast.schema.aggregates.replica import ReplicaStatus
from tensorcast.schema.chunks import choose_chunk_bytes
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
from tensorcast.schema.namespaces import Namespace, namespace_of
from tensorcast.schema.socket import PutSealed, SealPut
from tensorcast.schema.tensors import Manifest, check_index, check_manifest, derive_artifact_id

UNMAP_S_MAX: Final = 1.0
UNMAP_S_PATIENT: Final = 30.0
UNMAP_BYTES_PER_S_MIN: Final = 1 << 30
"""Giving up a mapping of a GiB takes 0.04 s; a busy machine may take longer."""
LOOK_AGAIN_S: Final = 0.005
SETTLE_S_MAX: Final = 10.0
RETRY_S: Final = 1.0
_ARTIFACT_ID = re.compile(r"[0-9a-f]{40}")

_logger = logging.getLogger(__name__)
T = TypeVar("T")


class Named(NamedTuple):
    """What is to be registered, once it is known for certain what the bytes are."""

    artifact: ArtifactId
    manifest: Manifest
    request: SealPut


class Sealing:
    """Seals segments. Takes each over: it becomes a resident or goes back to the pool."""

    def __init__(
        self,
        residents: Residents,
        pool: Pool,
        journal: Journal,
        log: Appender,
        follower: Follower,
        life: Life,
    ) -> None:
        self._residents = residents
        self._pool = pool
        self._journal = journal
        self._log = log
        self._follower = follower
        self._life = life
        self._doubts: set[asyncio.Task[None]] = set()

    async def seal(
        self, segment: Segment, digester: Digester, request: SealPut, actor: str
    ) -> PutSealed:
        """Makes an artifact of what was written. Raises Corrupt when the bytes are not what the
        request says, InvalidArgument, Conflict (of the key); then nothing is registered. Raises
        Unavailable and Timeout when the log cannot be reached: then it may be registered still."""
        return await self._seal(segment, digester, request, actor, is_patient=False)

    async def seal_patiently(
        self, segment: Segment, digester: Digester, request: SealPut, actor: str
    ) -> PutSealed:
        """As `seal`, but waits for the log as long as it takes. When it is cancelled the segment
        stays in use."""
        return await self._seal(segment, digester, request, actor, is_patient=True)

    async def seal_held(self, request: SealPut, actor: str) -> PutSealed:
        """No bytes come: a conflict is told first, and then only names are left to be set. Raises
        NotFound when exactly this artifact is not here."""
        check_request(request)
        named = Named(request.artifact or ArtifactId(""), request.manifest, request)
        await self._follower.wait_for(await self._log.last_seq(), SETTLE_S_MAX)
        for command in _key_commands(named):
            decide(self._follower.view, command)
        if not self._is_held(named):
            raise NotFound(
                f"Node {self._life.node} does not hold artifact {named.artifact}.",
                hint="Put its bytes.",
                artifact=named.artifact,
                node=self._life.node,
            )
        return await self._register_key(named, actor)

    def is_registered(self, segment: str) -> PutSealed | None:
        """The seal of a segment that an earlier life of this mover carried out to its end."""
        for resident in self._residents.all():
            if resident.segment.name == segment:
                return PutSealed(
                    artifact=resident.id,
                    replica=resident.replica,
                    seq=self._follower.view.at,
                    existed=False,
                    kind=resident.kind,
                    labels=resident.labels,
                )
        return None

    def close(self) -> None:
        """Asks the log no more whether what it did not answer has happened."""
        for doubt in self._doubts:
            doubt.cancel()

    # ---- what it is ----------------------------------------------------------------------------

    async def _seal(
        self,
        segment: Segment,
        digester: Digester,
        request: SealPut,
        actor: str,
        *,
        is_patient: bool,
    ) -> PutSealed:
        is_in_use = False
        try:
            patience_s = UNMAP_S_PATIENT if is_patient else UNMAP_S_MAX
            named = await self._identify(segment, digester, request, patience_s)
            insist = _insist if is_patient else _once
            if self._residents.find_ready(named.artifact) is not None:
                return await insist(lambda: self._register_key(named, actor))
            await insist(self._settle_reports)
            is_in_use = True
            if is_patient:
                return await self._register_surely(segment, named, actor)
            return await self._register(segment, named, actor)
        except asyncio.CancelledError:
            is_in_use = is_in_use or is_patient
            raise
        finally:
            digester.stop()
            if not is_in_use:
                self._pool.release(segment)

    async def _identify(
        self, segment: Segment, digester: Digester, request: SealPut, patience_s: float
    ) -> Named:
        """What the bytes are. What the writer believed of them must be true."""
        check_request(request)
        size_bytes = request.manifest.size_bytes
        if size_bytes > segment.capacity_bytes:
            raise InvalidArgument("The manifest is larger than the segment of the put.")
        if size_bytes != digester.size_bytes:
            digester.stop()
            digester = Digester(segment, size_bytes)
        await _wait_for_writers(segment, patience_s + size_bytes / UNMAP_BYTES_PER_S_MIN)
        digests = await in_thread(digester.finish)
        await in_thread(self._pool.settle, segment, size_bytes)
        manifest = structs.replace(
            request.manifest, digests=b"".join(digest.check for digest in digests)
        )
        artifact = derive_artifact_id(
            manifest.index, size_bytes, (digest.content for digest in digests)
        )
        self._check_belief(request, artifact, manifest)
        return Named(artifact, manifest, request)

    def _check_belief(self, request: SealPut, artifact: ArtifactId, manifest: Manifest) -> None:
        is_wrong = request.manifest.digests and request.manifest.digests != manifest.digests
        if is_wrong or request.artifact not in (None, artifact):
            raise Corrupt(
                "The bytes of the put do not match their digests.",
                hint="The tensors may have been written to during the put: put them again.",
                artifact=request.artifact,
                node=self._life.node,
            )

    def _is_held(self, named: Named) -> bool:
        """Whether exactly this is here, and will not go because it was evicted or removed."""
        resident = self._residents.find_ready(named.artifact)
        replica = self._follower.view.replicas.get(self._replica(named.artifact))
        artifact = self._follower.view.artifacts.get(named.artifact)
        return (
            resident is not None
            and resident.manifest == named.manifest
            and replica is not None
            and replica.status is ReplicaStatus.READY
            and artifact is not None
            and artifact.status is ArtifactStatus.SEALED
        )

    # ---- registering it ------------------------------------------------------------------------

    async def _register_key(self, named: Named, actor: str) -> PutSealed:
        """The bytes are here already: only names are left to be set."""
        commands = [_seal_command(named), *_key_commands(named)]
        outcome = await execute(self._log, self._follower, commands, actor=actor)
        return self._sealed(named, outcome, existed=True)

    async def _register(self, segment: Segment, named: Named, actor: str) -> PutSealed:
        """One append for artifact, replica and key. The journal knows the segment before, so that
        a crash right after the append loses nothing."""
        try:
            await self._journal.keep_segment_soon(self._replica(named.artifact), segment.name)
        except BaseException:
            self._pool.release(segment)
            raise
        try:
            outcome = await self._append(named, actor)
        except (Unavailable, Timeout):
            self._doubt(segment, named.artifact)
            raise
        except BaseException:
            await self._undo(segment, named.artifact)
            raise
        await self._accept(segment, named.artifact)
        return self._sealed(named, outcome, existed=False)

    async def _register_surely(self, segment: Segment, named: Named, actor: str) -> PutSealed:
        """As `_register`; without an answer of the log it appends again, which does nothing when
        it was done."""
        await self._journal.keep_segment(self._replica(named.artifact), segment.name)
        try:
            outcome = await _insist(lambda: self._append(named, actor))
        except asyncio.CancelledError:
            raise
        except BaseException:
            await self._undo(segment, named.artifact)
            raise
        await self._accept(segment, named.artifact)
        return self._sealed(named, outcome, existed=False)

    async def _append(self, named: Named, actor: str) -> Outcome:
        commands = [_seal_command(named), self._complete(named), *_key_commands(named)]
        return await execute(self._log, self._follower, commands, actor=actor)

    def _sealed(self, named: Named, outcome: Outcome, *, existed: bool) -> PutSealed:
        found = self._follower.view.artifacts.get(named.artifact)
        return PutSealed(
            artifact=named.artifact,
            replica=self._replica(named.artifact),
            seq=outcome.seq,
            existed=existed,
            kind=found.kind if found else named.request.kind,
            labels=found.labels if found else named.request.labels,
        )

    async def _settle_reports(self) -> None:
        """What is reported of an earlier replica must be decided before the new one appears."""
        try:
            async with asyncio.timeout(SETTLE_S_MAX):
                await self._journal.settled()
        except TimeoutError:
            if self._journal.trouble:
                raise OutOfCapacity(self._journal.trouble, node=self._life.node) from None
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

    def _complete(self, named: Named) -> CompleteReplica:
        return CompleteReplica(
            replica=self._replica(named.artifact),
            artifact=named.artifact,
            node=self._life.node,
            tier=Tier.DRAM,
            epoch=self._life.epoch,
            chunks_total=named.manifest.chunks_total,
        )


async def _wait_for_writers(segment: Segment, patience_s: float) -> None:
    """What is sealed must not change: nobody may be able to write to it any more."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    while segment.has_writers():
        if loop.time() > deadline:
            raise InvalidArgument(
                "The segment of the put is still mapped for writing.",
                hint="Unmap it and close its descriptor before sealing, also in processes that "
                "were forked meanwhile.",
            )
        await asyncio.sleep(LOOK_AGAIN_S)


async def _once(work: Callable[[], Awaitable[T]]) -> T:
    return await work()


async def _insist(work: Callable[[], Awaitable[T]]) -> T:
    """Repeats the work until the log answers and the disk has room."""
    while True:
        try:
            return await work()
        except (OutOfCapacity, Unavailable, Timeout) as error:
            _logger.info("an accepted put waits: %s", error)
            await asyncio.sleep(RETRY_S)


def check_request(request: SealPut) -> None:
    """Raises InvalidArgument or Corrupt for what can never be sealed, whatever the bytes are."""
    if request.artifact is not None and not _ARTIFACT_ID.fullmatch(request.artifact):
        raise InvalidArgument(f"{request.artifact!r} is not an artifact id.")
    if request.key is not None:
        parse_key(request.key)
    manifest = request.manifest
    if manifest.digests:
        check_manifest(manifest)
        return
    check_index(manifest.index, manifest.size_bytes)
    if manifest.chunk_bytes != choose_chunk_bytes(manifest.size_bytes):
        raise Corrupt(f"{manifest.chunk_bytes} is not the chunk size of this artifact.")


def _seal_command(named: Named) -> SealArtifact:
    return SealArtifact(
        artifact=named.artifact,
        kind=named.request.kind,
        manifest=named.manifest,
        labels=named.request.labels,
        namespace=namespace_of(named.request.key) if named.request.key else Namespace(""),
    )


def _key_commands(named: Named) -> Sequence[Command]:
    request = named.request
    if request.key is None:
        return []
    return [MoveKey(key=request.key, artifact=named.artifact, expect=request.expect)]
