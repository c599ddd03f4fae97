"""The unix socket for applications of this node: `schema.socket` spoken by the mover.

Each connection is a task; what one application sends never reaches another. Requests of one
connection are answered one after the other.
"""

from __future__ import annotations

import asyncio
import grp
import logging
import os
import pwd
import socket
import struct
from collections.abc import Callable, Sequence
from errno import EEXIST
from pathlib import Path
from stat import S_ISSOCK
from typing import Final, assert_never

from tensorcast.movers.excerpts import Excerpt
from tensorcast.movers.memory.cgroups import shares_memory_limit
from tensorcast.movers.memory.handover import FrameSocket, close_all
from tensorcast.movers.pending import Pending
from tensorcast.movers.puts import Puts
from tensorcast.movers.readers import Readers
from tensorcast.movers.residents import Phase
from tensorcast.schema.access import actor_of, user_name
from tensorcast.schema.errors import (
    Corrupt,
    InvalidArgument,
    OutOfCapacity,
    PermissionDenied,
    TensorCastError,
    to_body,
)
from tensorcast.schema.socket import (
    AbortPut,
    Answer,
    Arrived,
    AskStats,
    AwaitPut,
    Done,
    Follow,
    Get,
    GpuPlace,
    Granted,
    Hello,
    OpenPut,
    Prepare,
    PutOpened,
    Refused,
    Request,
    SealPut,
    Stats,
    Welcome,
    decode_request,
    encode_frame,
)

BACKLOG: Final = 128
HELLO_S_MAX: Final = 10.0
ACTOR_CHARS_MAX: Final = 256
MODE: Final = 0o660
OWN_ACTORS: Final = ("mover:", "policy:", "controlplane", "timers")
_CREDENTIALS = struct.Struct("3i")

_logger = logging.getLogger(__name__)


class _Owner:
    """Stands for a connection, and knows the process at its other end. `user` is its login, as
    rules name it."""

    def __init__(self, connected: socket.socket) -> None:
        raw = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        self.pid: int = _CREDENTIALS.unpack(raw)[0]
        self.user = user_name(peer_login(connected))


class SocketServer:
    """Listens on a path from construction until `close`, which removes it. A socket that an
    earlier life left there is replaced. Raises PermissionDenied when the path cannot be used."""

    def __init__(
        self,
        path: Path,
        readers: Readers,
        puts: Puts,
        pending: Pending,
        welcome: Callable[[], Welcome],
        stats: Callable[[], Stats],
        *,
        connections_max: int,
    ) -> None:
        self._path = path
        self._readers = readers
        self._puts = puts
        self._pending = pending
        self._welcome = welcome
        self._stats = stats
        self._connections_max = connections_max
        self._open = 0
        self._listening = listen_at(path)

    async def serve(self) -> None:
        """Takes connections for ever."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            while True:
                try:
                    connected, _ = await loop.sock_accept(self._listening)
                except OSError as error:  # out of descriptors: others must end first
                    _logger.warning("no connection can be taken: %s", error)
                    await asyncio.sleep(0.1)
                    continue
                tasks.create_task(self._attend(connected))

    def close(self) -> None:
        """Takes no more connections. Safe to repeat."""
        if self._listening.fileno() >= 0:
            self._listening.close()
            self._path.unlink(missing_ok=True)

    async def _attend(self, connected: socket.socket) -> None:
        """One connection from its first to its last byte; nothing that it does gets out."""
        frames = FrameSocket(connected)
        owner = _Owner(connected)
        self._open += 1
        try:
            actor = await self._greet(connected, frames)
            while (request := await _receive(frames)) is not None:
                await self._reply(frames, request, owner, actor)
        except (TensorCastError, OSError, TimeoutError) as error:
            _logger.info("a connection ended: %s", error)
        finally:
            self._open -= 1
            frames.close()
            self._puts.abandon(owner)

    async def _greet(self, connected: socket.socket, frames: FrameSocket) -> str:
        """The name under which this application acts. Raises what it was refused with."""
        async with asyncio.timeout(HELLO_S_MAX):
            request = await _receive(frames)
        try:
            if self._open > self._connections_max:
                raise OutOfCapacity(
                    f"{self._connections_max} connections are open; more are not taken.",
                    hint="Share one client in each process.",
                )
            check_peer(connected)
            if not isinstance(request, Hello):
                raise InvalidArgument("The first message of a connection must be a greeting.")
            check_actor(request.actor)
        except TensorCastError as error:
            await frames.send(encode_frame(Refused(error=to_body(error))))
            raise
        await frames.send(encode_frame(self._welcome()))
        return actor_of(peer_login(connected), request.actor)

    async def _reply(
        self, frames: FrameSocket, request: Request, owner: _Owner, actor: str
    ) -> None:
        fds: Sequence[int] = ()
        try:
            answer, fds = await self._answer(request, owner, actor)
        except TensorCastError as error:
            answer = Refused(error=to_body(error))
        except Exception as error:
            _logger.exception("a request broke")
            broken = TensorCastError(f"The mover broke on this request: {error!r}.")
            answer = Refused(error=to_body(broken))
        try:
            await frames.send(encode_frame(answer), fds)
        finally:
            close_all(fds)

    async def _answer(
        self, request: Request, owner: _Owner, actor: str
    ) -> tuple[Answer, Sequence[int]]:
        match request:
            case Hello():
                return self._welcome(), ()
            case Prepare():
                return self._puts.foresee(request, owner.user), ()
            case OpenPut():
                return await self._open_put(request, owner)
            case SealPut():
                self._puts.check_seal(request, owner.user)
                seal = self._puts.seal if request.wait else self._puts.accept
                return await seal(request, owner, actor), ()
            case AwaitPut():
                return await self._pending.wait(request.ticket), ()
            case AbortPut():
                self._puts.abort(request.session, owner)
                return Done(), ()
            case Get():
                return await self._get(request, actor, owner.user)
            case Follow():
                return Arrived(chunks=await self._readers.follow(request)), ()
            case AskStats():
                return self._stats(), ()
            case _:
                assert_never(request)

    async def _open_put(self, request: OpenPut, owner: _Owner) -> tuple[Answer, Sequence[int]]:
        put = await self._puts.open(
            request.size_bytes,
            owner,
            is_lasting=request.lasting,
            is_touched=not shares_memory_limit(owner.pid),
        )
        opened = PutOpened(
            session=put.session,
            capacity_bytes=put.segment.capacity_bytes,
            is_zero=put.is_zero,
        )
        more = self._readers.lend(put.segment) if request.lasting else ()
        return opened, (put.segment.open_writable(), *more)

    async def _get(self, request: Get, actor: str, user: str) -> tuple[Answer, Sequence[int]]:
        if request.gpu and (found := await self._get_gpu(request, user)) is not None:
            return found
        grant = await self._readers.read(
            request.what,
            request.after,
            request.timeout_s,
            actor,
            in_part=request.partial,
            chunks=request.chunks if request.partial else None,
            user=user,
        )
        resident = grant.resident
        granted = Granted(
            artifact=resident.id,
            kind=resident.kind,
            labels=resident.labels,
            manifest=resident.manifest,
            segment=resident.segment.name,
            chunks=None if resident.phase is Phase.READY else resident.chunks,
            is_excerpt=isinstance(resident, Excerpt),
        )
        return granted, (grant.segment_fd, grant.lifeline_fd)

    async def _get_gpu(self, request: Get, user: str) -> tuple[Answer, Sequence[int]] | None:
        grant = await self._readers.read_gpu(request.what, request.after, request.timeout_s, user)
        if grant is None:
            return None
        resident, segment = grant.resident, grant.resident.segment
        granted = Granted(
            artifact=resident.id,
            kind=resident.kind,
            labels=resident.labels,
            manifest=resident.manifest,
            segment=segment.name,
            gpu=GpuPlace(pci=segment.pci, handle=segment.export()),
        )
        return granted, (grant.lifeline_fd,)


async def _receive(frames: FrameSocket) -> Request | None:
    """The next request; None at the end. Raises Corrupt. No request brings descriptors."""
    frame = await frames.receive()
    if frame is None:
        return None
    body, fds = frame
    close_all(fds)
    try:
        return decode_request(body)
    except Corrupt as error:
        await frames.send(encode_frame(Refused(error=to_body(error))))
        raise


def check_actor(actor: str) -> None:
    """Raises InvalidArgument for a name that no application may have in the audit trail."""
    if not 0 < len(actor) <= ACTOR_CHARS_MAX or not actor.isprintable():
        raise InvalidArgument("The greeting does not say who asks.")
    if actor.startswith(OWN_ACTORS):
        raise InvalidArgument(
            f"An application may not act as {actor!r}.", hint="Call it `user:<login>@<host>`."
        )


def listen_at(path: Path) -> socket.socket:
    """A socket that listens on a path, in place of what an earlier life left there. Whoever sees
    the path can connect: it gets its name when it listens already. Raises PermissionDenied."""
    unnamed = path.with_name(path.name + ".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not S_ISSOCK(path.stat().st_mode):
            raise FileExistsError(EEXIST, "something else is there")
        unnamed.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        listening.setblocking(False)
        before = os.umask(0o777 & ~MODE)
        try:
            listening.bind(str(unnamed))
        finally:
            os.umask(before)
        listening.listen(BACKLOG)
        unnamed.rename(path)
    except OSError as error:
        raise PermissionDenied(
            f"The socket {path} cannot be used: {error.strerror}.",
            hint="Choose another place with TENSORCAST_SOCKET.",
        ) from error
    return listening


def check_peer(connected: socket.socket) -> None:
    """Raises PermissionDenied unless the other side is this user, root or in our group."""
    raw = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, gid = _CREDENTIALS.unpack(raw)
    if not is_allowed(uid, gid):
        raise PermissionDenied(
            f"User {uid} may not use this mover, which runs as user {os.geteuid()}.",
            hint=f"Run it as the same user, or add the user to the group {_group_name()}.",
        )


def peer_login(connected: socket.socket) -> str:
    """The account at the other side, as the kernel tells it; its number when it has no name."""
    raw = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    uid = _CREDENTIALS.unpack(raw)[1]
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # as in many containers
        return str(uid)


def is_allowed(uid: int, gid: int) -> bool:
    """Whether a process of this user and group may use the mover of this process' user."""
    ours = os.getegid()
    if uid in (0, os.geteuid()) or (ours != 0 and gid == ours):
        return True
    try:
        account = pwd.getpwuid(uid)
    except KeyError:
        return False
    return ours != 0 and ours in os.getgrouplist(account.pw_name, account.pw_gid)


def _group_name() -> str:
    try:
        return grp.getgrgid(os.getegid()).gr_name
    except KeyError:
        return str(os.getegid())
