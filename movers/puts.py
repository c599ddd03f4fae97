"""Writing on this node: a segment is lent out, filled by an application, and sealed, accepted (to
be sealed soon) or given back.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from typing import Final, TypeVar, cast

from tensorcast.log.follower import Follower
from tensorcast.movers.memory.digesting import Digester
from tensorcast.movers.memory.memfd import Segment
from tensorcast.movers.memory.pool import Pool
from tensorcast.movers.pending import Pending
from tensorcast.movers.reports import Life
from tensorcast.movers.room import Room
from tensorcast.movers.sealing import Sealing, check_request
from tensorcast.movers.seals import AcceptedSeal
from tensorcast.schema.aggregates.key import KeyStatus
from tensorcast.schema.authorization import check_key, check_namespace, may_any
from tensorcast.schema.errors import InvalidArgument, NotFound, OutOfCapacity
from tensorcast.schema.ids import ArtifactId, Key
from tensorcast.schema.namespaces import DEFAULT, Right
from tensorcast.schema.socket import (
    NO_SESSION,
    Prepare,
    Prospect,
    PutAccepted,
    PutSealed,
    SealPut,
)
from tensorcast.schema.tensors import SIZE_BYTES_MAX

T = TypeVar("T")

PLACE_S_MAX: Final = 10.0
LOOK_AGAIN_S: Final = 0.02
SEALED: Final = "sealed"
"""The ticket of a put that did not have to be accepted first."""


class Put:
    """A segment that an application fills; `owner` stands for its connection."""

    def __init__(
        self, session: int, segment: Segment, is_zero: bool, digester: Digester, owner: object
    ) -> None:
        self.session = session
        self.segment = segment
        self.is_zero = is_zero
        self.digester = digester
        self.owner = owner


class Puts:
    """The open puts of a node."""

    def __init__(
        self,
        room: Room,
        drop_idle: Callable[[], Awaitable[None]],
        pool: Pool,
        sealing: Sealing,
        pending: Pending,
        follower: Follower,
        life: Life,
        *,
        puts_max: int,
    ) -> None:
        self._room = room
        self._drop_idle = drop_idle
        self._pool = pool
        self._sealer = sealing
        self._pending = pending
        self._follower = follower
        self._life = life
        self._puts_max = puts_max
        self._puts: dict[int, Put] = {}
        self._opening = 0
        self._last_session = 0
        self._sealing: set[asyncio.Future[object]] = set()

    @property
    def total(self) -> int:
        """How many puts are open."""
        return len(self._puts) + self._opening

    def check_rights(self, key: Key | None, user: str) -> None:
        """Raises PermissionDenied when the rules do not let a user put, or move this key."""
        view = self._follower.view
        if key is None:
            check_namespace(view, user, DEFAULT, Right.WRITE)
            return
        check_key(view, user, key, Right.WRITE)
        if self._target(key) is not None:
            check_key(view, user, key, Right.KEYS)

    def check_seal(self, request: SealPut, user: str) -> None:
        """Raises PermissionDenied as `check_rights`; and NotFound for an artifact that a user who
        may not read it names without showing its bytes."""
        self.check_rights(request.key, user)
        named = request.artifact
        view = self._follower.view
        if request.session != NO_SESSION or named is None:
            return
        if not may_any(view, user, named, Right.READ):
            raise NotFound(
                f"Node {self._life.node} does not hold artifact {named} for {user}.",
                hint="Put its bytes.",
                artifact=named,
                node=self._life.node,
            )

    def foresee(self, request: Prepare, user: str = "") -> Prospect:
        """What awaits a put, as far as is known here. Raises OutOfCapacity for one that never
        fits, InvalidArgument and PermissionDenied."""
        self.check_rights(request.key, user)
        _check_size(request.size_bytes)
        fits = self._room.fits(request.size_bytes)
        return Prospect(key_artifact=self._target(request.key), fits=fits)

    def _target(self, key: Key | None) -> ArtifactId | None:
        """What a key points to, as far as is known here."""
        state = None if key is None else self._follower.view.keys.get(key)
        return state.artifact if state and state.status is KeyStatus.SET else None

    async def open(
        self, size_bytes: int, owner: object, *, is_lasting: bool = False, is_touched: bool = True
    ) -> Put:
        """Lends a segment of at least `size_bytes`; waits while too many puts are open. Raises
        OutOfCapacity and InvalidArgument.

        `is_lasting`: it will be worked in, not just filled. Not `is_touched`: the writer makes the
        pages of new memory."""
        _check_size(size_bytes)
        await self._pending.check_room()
        await self._wait_for_place()
        self._opening += 1
        try:
            lent = await self._room.find(size_bytes, self._drop_idle, is_touched=is_touched)
        finally:
            self._opening -= 1
        digester = Digester(lent.segment, size_bytes)
        if lent.is_zero and not is_lasting and not is_touched:
            digester.watch()
        self._last_session += 1
        put = Put(self._last_session, lent.segment, lent.is_zero, digester, owner)
        self._puts[put.session] = put
        return put

    async def _wait_for_place(self) -> None:
        clock = asyncio.get_running_loop().time
        deadline = clock() + PLACE_S_MAX
        while self.total >= self._puts_max:
            if clock() > deadline:
                raise OutOfCapacity(
                    f"{self.total} puts are open on node {self._life.node}; more are not taken.",
                    hint="Finish some of them first.",
                    node=self._life.node,
                )
            await asyncio.sleep(LOOK_AGAIN_S)

    def abort(self, session: int, owner: object) -> None:
        """Gives the segment back. Safe to repeat. Raises InvalidArgument for somebody else's."""
        if session in self._puts:
            put = self._take(session, owner)
            put.digester.stop()
            self._pool.release(put.segment)

    def abandon(self, owner: object) -> None:
        """Aborts all puts of a connection that has ended."""
        for put in [put for put in self._puts.values() if put.owner is owner]:
            self.abort(put.session, owner)

    async def seal(self, request: SealPut, owner: object, actor: str) -> PutSealed:
        """Makes an artifact of what was written. Raises Corrupt when the bytes are not what the
        request says, InvalidArgument, Conflict (of the key); then nothing is registered and the
        put is over. Without a session, NotFound unless the artifact is here already."""
        if request.session == NO_SESSION:
            await self._pending.settle_key(request.key)
            return await self._sealer.seal_held(request, actor)
        put = self._take(request.session, owner)
        return await self._surely(self._seal(put, request, actor))

    async def accept(self, request: SealPut, owner: object, actor: str) -> PutAccepted:
        """As `seal`, but returns as soon as the put is safe from a crash of this mover. When it
        depends on the content whether the key may move, it is sealed at once."""
        is_free = self._target(request.key) == request.expect
        if request.session == NO_SESSION or not is_free or self._pending.is_awaited(request.key):
            return PutAccepted(ticket=SEALED, sealed=await self.seal(request, owner, actor))
        put = self._take(request.session, owner)
        return await self._surely(self._accept(put, request, actor))

    async def finished(self) -> None:
        """Returns when no seal is under way, and what was accepted is sealed or saved."""
        while self._sealing:
            await asyncio.wait(self._sealing)
        await self._pending.finish()
        self._sealer.close()

    async def _surely(self, work: Coroutine[object, object, T]) -> T:
        """Once begun it is finished, whatever becomes of the connection: no half-known segments."""
        sealing = asyncio.ensure_future(work)
        known = cast("asyncio.Future[object]", sealing)
        self._sealing.add(known)
        known.add_done_callback(self._sealing.discard)
        return await asyncio.shield(sealing)

    async def _seal(self, put: Put, request: SealPut, actor: str) -> PutSealed:
        await self._pending.settle_key(request.key)
        return await self._sealer.seal(put.segment, put.digester, request, actor)

    async def _accept(self, put: Put, request: SealPut, actor: str) -> PutAccepted:
        try:
            check_request(request)
            if request.manifest.size_bytes > put.segment.capacity_bytes:
                raise InvalidArgument("The manifest is larger than the segment of the put.")
        except BaseException:
            put.digester.stop()
            self._pool.release(put.segment)
            raise
        seal = AcceptedSeal(
            ticket=secrets.token_hex(16), segment=put.segment.name, actor=actor, request=request
        )
        await self._pending.accept(seal, put.segment, put.digester)
        return PutAccepted(ticket=seal.ticket)

    def _take(self, session: int, owner: object) -> Put:
        put = self._puts.get(session)
        if put is None or put.owner is not owner:
            raise InvalidArgument(
                f"There is no put {session} on this connection.",
                hint="A put ends with its first seal, with an abort, or with its connection.",
            )
        return self._puts.pop(session)


def _check_size(size_bytes: int) -> None:
    if not 0 <= size_bytes <= SIZE_BYTES_MAX:
        raise InvalidArgument(f"{size_bytes} bytes is not a possible size of an artifact.")
