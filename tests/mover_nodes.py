"""Real mover processes for tests, with a supervisor that keeps their descriptors, and a small
application that speaks the unix socket by itself."""

from __future__ import annotations

import asyncio
import mmap
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import blake3
import msgspec
import xxhash

from tensorcast.deploy.fdstore import FdStore
from tensorcast.deploy.notify import NotifySocket
from tensorcast.deploy.spawn import Launch, spawn
from tensorcast.log.execute import Outcome, execute
from tensorcast.log.follower import Follower
from tensorcast.log.identity import new_event_id
from tensorcast.log.jetstream import JetStreamLog, connect_log
from tensorcast.movers.core.layout import Layout
from tensorcast.movers.transports.base import Bell, Lending
from tensorcast.movers.transports.tcp.server import TcpServer
from tensorcast.schema.aggregates.operation import OPEN, Operation, OperationStatus
from tensorcast.schema.chunks import ChunkSet, choose_chunk_bytes, chunk_range, count_chunks
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.codec import decode
from tensorcast.schema.commands import (
    Command,
    FillReplica,
    IssueOperation,
    JoinNode,
    SealArtifact,
    StartReplica,
)
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.errors import NotFound, from_body
from tensorcast.schema.ids import (
    ArtifactId,
    Epoch,
    Key,
    NodeId,
    OperationId,
    Seq,
    Tier,
    derive_operation_id,
    replica_id,
)
from tensorcast.schema.socket import (
    LENGTH,
    Answer,
    AskStats,
    Get,
    Granted,
    Hello,
    OpenPut,
    PutOpened,
    PutSealed,
    Refused,
    Request,
    SealPut,
    Stats,
    body_bytes,
    decode_answer,
    encode_frame,
)
from tensorcast.schema.tensors import Manifest, derive_artifact_id, lay_out
from tensorcast.schema.work import Work

READY_S_MAX = 30.0
MIB = 1 << 20


class MoverNode:
    """A mover process that can be killed and started again; what it stores with its supervisor
    comes back to it."""

    def __init__(self, name: str, folder: Path, nats_url: str, **environ: str) -> None:
        self.name = name
        self.folder = folder
        self.socket = folder / "mover.sock"
        self.prefix: tuple[str, ...] = ()
        self.pid: int | None = None
        self.status: int | None = None
        self.statuses: list[str] = []
        self.store = FdStore(size_max=256)
        folder.mkdir(exist_ok=True)
        self._notify = NotifySocket(folder / "notify")
        self._is_ready = False
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        self._environ = {
            "PATH": os.environ["PATH"],
            "NOTIFY_SOCKET": str(self._notify.path),
            "TENSORCAST_CLUSTER": "test",
            "TENSORCAST_NODE": name,
            "TENSORCAST_NATS_URL": nats_url,
            "TENSORCAST_DATA_DIR": str(folder / "data"),
            "TENSORCAST_SOCKET": str(self.socket),
            "TENSORCAST_DRAM_BYTES": str(256 * MIB),
            "TENSORCAST_HEARTBEAT_S": "0.2",
            **environ,
        }

    def start(self, **environ: str) -> None:
        """Starts it and waits until it says READY=1."""
        self._environ |= environ
        self.launch()
        self.wait_until(lambda: self._is_ready)

    def launch(self) -> None:
        """Starts it and does not wait."""
        self._is_ready = False
        with self._lock:
            kept = self.store.named()
        launch = Launch(
            command=(*self.prefix, sys.executable, "-m", "tensorcast.movers.main"),
            environ=self._environ,
            folder=str(self.folder),
            log=str(self.folder / "mover.log"),
            descriptors=kept,
        )
        self.pid = spawn(launch)

    def wait_until(self, predicate, timeout_s: float = READY_S_MAX) -> None:
        """Waits for something that a running mover does."""
        deadline = time.monotonic() + timeout_s
        while not predicate():
            assert time.monotonic() < deadline, self.log_text()
            assert self.is_running(), self.log_text()
            time.sleep(0.002)

    def _listen(self) -> None:
        """Takes in the messages of the mover, in a thread: it never waits for its supervisor."""
        while not self._ending.is_set():
            if select.select([self._notify.fileno()], [], [], 0.1)[0]:
                self.take_in()

    def take_in(self) -> None:
        """Takes in all messages that have come."""
        with self._lock:
            for notice, fds in self._notify.receive():
                if notice.stores:
                    self.store.add(notice.name, fds)
                if notice.removes:
                    self.store.remove(notice.name)
                if notice.status:
                    self.statuses.append(notice.status)
                self._is_ready = self._is_ready or notice.ready

    def is_running(self) -> bool:
        if self.pid is None:
            return False
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            self.pid = None
            self.status = os.waitstatus_to_exitcode(status)
        return not pid

    def wait_until_ended(self, timeout_s: float = READY_S_MAX) -> None:
        """Waits for a mover that stops by itself; `status` is its exit status."""
        deadline = time.monotonic() + timeout_s
        while self.is_running():
            assert time.monotonic() < deadline, self.log_text()
            time.sleep(0.01)

    def kill(self) -> None:
        """As a crash."""
        self.end(signal.SIGKILL)
        self.take_in()

    def stop(self) -> int:
        """In good order; returns the exit status."""
        status = self.end(signal.SIGTERM)
        self.take_in()
        return status

    def end(self, number: int) -> int:
        if self.pid is None:
            return 0
        os.kill(self.pid, number)
        _, status = os.waitpid(self.pid, 0)
        self.pid = None
        return os.waitstatus_to_exitcode(status)

    def log_text(self) -> str:
        log = self.folder / "mover.log"
        return log.read_text()[-6000:] if log.exists() else ""

    def descriptors(self) -> int:
        """How many descriptors the process has open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def close(self) -> None:
        self.end(signal.SIGKILL)
        self._ending.set()
        self._thread.join()
        self._notify.close()
        self.store.close()

    @contextmanager
    def application(self, actor: str = "user:ada@test") -> Iterator[Application]:
        """A connection of an application."""
        with Application(self.socket, actor) as application:
            yield application


class Content:
    """Tensors of random bytes with their manifest and id."""

    def __init__(self, sizes: list[int], seed: int = 0) -> None:
        index, size = lay_out((f"t{n}", "U8", (size,)) for n, size in enumerate(sizes))
        space = bytearray(size)
        for n, spec in enumerate(index):
            space[spec.offset : spec.offset + spec.size_bytes] = _random_bytes(
                spec.size_bytes, seed * 1000 + n
            )
        self.bytes = bytes(space)
        chunk = choose_chunk_bytes(size)
        parts = [
            memoryview(self.bytes)[where.offset : where.end]
            for n in range(count_chunks(size, chunk))
            for where in (chunk_range(n, size, chunk),)
        ]
        self.manifest = Manifest(
            index=index,
            size_bytes=size,
            chunk_bytes=chunk,
            digests=b"".join(xxhash.xxh3_64_digest(part) for part in parts),
        )
        self.id = derive_artifact_id(index, size, (blake3.blake3(p).digest() for p in parts))


def _random_bytes(size: int, seed: int) -> bytes:
    return blake3.blake3(str(seed).encode()).digest(length=size)


class Application:
    """One connection to a mover; blocks."""

    def __init__(self, path: Path, actor: str = "user:ada@test") -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(str(path))
        self.ask(Hello(actor=actor, pid=os.getpid()))

    def ask(self, request: Request) -> tuple[Answer, tuple[int, ...]]:
        """The answer and its descriptors. Raises the error of a refusal."""
        self.socket.sendall(encode_frame(request))
        return self.receive()

    def receive(self) -> tuple[Answer, tuple[int, ...]]:
        head, fds, _, _ = socket.recv_fds(self.socket, LENGTH.size, 4)
        if not head:
            raise ConnectionResetError("the mover closed the connection")
        body = b""
        size = body_bytes(head)
        while len(body) < size:
            piece = self.socket.recv(size - len(body))
            assert piece
            body += piece
        answer = decode_answer(body)
        if isinstance(answer, Refused):
            assert not fds
            raise from_body(answer.error)
        return answer, tuple(fds)

    def put(
        self, content: Content, key: str | None = None, expect: ArtifactId | None = None, **more
    ) -> PutSealed:
        opened = self.open_put(content.manifest.size_bytes)
        self.write(opened[1], content.bytes)
        return self.seal(opened[0].session, content, key, expect, **more)

    def open_put(self, size_bytes: int) -> tuple[PutOpened, int]:
        opened, (fd,) = self.ask(OpenPut(size_bytes=size_bytes))
        assert isinstance(opened, PutOpened)
        return opened, fd

    def write(self, fd: int, data: bytes) -> None:
        if data:
            with mmap.mmap(fd, len(data)) as mapping:
                mapping[:] = data
        os.close(fd)

    def seal(
        self,
        session: int,
        content: Content,
        key: str | None = None,
        expect: ArtifactId | None = None,
        **more,
    ) -> PutSealed:
        request = SealPut(
            session=session,
            artifact=content.id,
            kind="weights",
            manifest=content.manifest,
            key=None if key is None else Key(key),
            expect=expect,
        )
        sealed, _ = self.ask(msgspec.structs.replace(request, **more))
        assert isinstance(sealed, PutSealed)
        return sealed

    def get(self, what: str, after: int = 0, timeout_s: float = 30.0) -> Reading:
        granted, (segment, lifeline) = self.ask(
            Get(what=what, after=Seq(after), timeout_s=timeout_s)
        )
        assert isinstance(granted, Granted)
        return Reading(granted, segment, lifeline)

    def stats(self) -> Stats:
        stats, _ = self.ask(AskStats())
        assert isinstance(stats, Stats)
        return stats

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Application:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Reading:
    """A mapped artifact."""

    def __init__(self, granted: Granted, segment: int, lifeline: int) -> None:
        self.granted = granted
        self.size = granted.manifest.size_bytes
        self.mapping = mmap.mmap(segment, max(1, self.size), flags=mmap.MAP_PRIVATE)
        self._lifeline = lifeline
        os.close(segment)

    def bytes(self) -> bytes:
        return self.mapping[: self.size]

    def close(self) -> None:
        self.mapping.close()
        os.close(self._lifeline)

    def __enter__(self) -> Reading:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TellingBell(Bell):
    """A bell that tells when somebody waits for it."""

    def __init__(self, waited: threading.Event) -> None:
        super().__init__()
        self._waited = waited

    def wait_for(self, predicate: Callable[[], bool], timeout_s: float) -> bool:
        self._waited.set()
        return super().wait_for(predicate, timeout_s)


class SlowSource:
    """A node that holds only some chunks until it is told to hold more: a source in slow motion.
    It serves with the real server; `asked` tells that a peer wants what is not there yet."""

    def __init__(self, name: str, content: Content, chunks: int) -> None:
        self.name = NodeId(name)
        self.content = content
        self.asked = threading.Event()
        self.chunks = ChunkSet.full(chunks)
        self._fd = os.memfd_create(name)
        os.pwrite(self._fd, content.bytes, 0)
        self._bell = TellingBell(self.asked)
        self.server = TcpServer("127.0.0.1:0", self, "test", self.name)

    @contextmanager
    def lend(self, artifact: ArtifactId) -> Iterator[Lending]:
        if artifact != self.content.id:
            raise NotFound("not here")
        manifest = self.content.manifest
        yield Lending(
            fd=self._fd,
            layout=Layout.whole(manifest.size_bytes),
            chunk_bytes=manifest.chunk_bytes,
            chunks=lambda: self.chunks,
            bell=self._bell,
        )

    def hold_all(self) -> None:
        self.chunks = ChunkSet.full(self.content.manifest.chunks_total)
        self._bell.ring()

    async def join(self, observer: Observer, epoch: int = 1) -> None:
        """Makes the log know the node and its half-filled replica."""
        replica = replica_id(self.content.id, self.name, Tier.DRAM)
        total = self.content.manifest.chunks_total
        commands: list[Command] = [
            JoinNode(
                node=self.name,
                epoch=Epoch(epoch),
                address=self.server.address,
                tiers={},
                transports=("tcp",),
            ),
            SealArtifact(artifact=self.content.id, kind="weights", manifest=self.content.manifest),
            StartReplica(
                replica=replica,
                artifact=self.content.id,
                node=self.name,
                tier=Tier.DRAM,
                epoch=Epoch(epoch),
                chunks_total=total,
            ),
        ]
        if self.chunks.ranges:
            commands.append(FillReplica(replica=replica, epoch=Epoch(epoch), chunks=self.chunks))
        await observer.execute(*commands, actor=f"mover:{self.name}")

    def close(self) -> None:
        self.server.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Observer:
    """The test's own eyes and hands in the log."""

    def __init__(self, log: JetStreamLog, follower: Follower) -> None:
        self.log = log
        self.follower = follower

    async def execute(self, *commands: Command, actor: str = "user:ada@test") -> Outcome:
        return await execute(self.log, self.follower, commands, actor=actor)

    async def issue(self, node: str, work: Work, name: str = "") -> OperationId:
        """An operation, as a scheduler would issue it."""
        operation = derive_operation_id(name or new_event_id(), "test", 0)
        await self.execute(
            IssueOperation(operation=operation, node=NodeId(node), work=work, policy="test")
        )
        return operation

    async def ended(self, operation: OperationId, timeout_s: float = 60.0) -> Operation:
        view = await self.follower.wait_until(
            lambda view: view.operations[operation].status not in OPEN, timeout_s
        )
        return view.operations[operation]

    async def succeeded(self, operation: OperationId, timeout_s: float = 60.0) -> Operation:
        ended = await self.ended(operation, timeout_s)
        assert ended.status is OperationStatus.SUCCEEDED, ended
        return ended

    async def view(self) -> ClusterView:
        """What the log says now."""
        return await self.follower.wait_for(await self.log.last_seq(), 10)

    async def until(self, predicate, timeout_s: float = 30.0) -> ClusterView:
        return await self.follower.wait_until(predicate, timeout_s)

    async def events(self) -> list[Recorded]:
        """The whole log."""
        last = await self.log.last_seq()
        found: list[Recorded] = []
        if last:
            async with aclosing(self.log.read(after=Seq(0))) as batches:
                async for batch in batches:
                    found += [decode(stored.payload, stored.seq) for stored in batch]
                    if found[-1].seq >= last:
                        break
        return found


@asynccontextmanager
async def observing(nats_url: str) -> AsyncIterator[Observer]:
    """Connects a test to the log that its movers use."""
    log = await connect_log(nats_url, "test", name="test")
    follower = Follower(log)
    following = asyncio.ensure_future(follower.run())
    try:
        yield Observer(log, follower)
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
        await log.aclose()
