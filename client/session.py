"""The client, awaitable: what the whole SDK offers. `sync.py` is a thin facade over it."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from tensorcast.client.api import REQUEST_S, ControlPlane
from tensorcast.client.arena import Arena
from tensorcast.client.arrivals import AsyncArrival, follow
from tensorcast.client.audit_calls import AsyncAuditCalls
from tensorcast.client.blocks_calls import Addresses, AsyncBlockCalls, make_blocks
from tensorcast.client.checking import check_bytes
from tensorcast.client.context import Context, resolve_context
from tensorcast.client.device_gets import device_of, get_into_on, get_on, select
from tensorcast.client.engine_calls import AsyncEngineCalls
from tensorcast.client.export import PathLike, Written, write_safetensors
from tensorcast.client.handles import AsyncArtifact, AsyncOperation, AsyncReplication
from tensorcast.client.identity import name_actor
from tensorcast.client.leases import AsyncLease
from tensorcast.client.memory import Mapping as MemoryMapping
from tensorcast.client.memory import map_segment
from tensorcast.client.model_files import (
    Mark,
    ModelFolder,
    check_files,
    find_folder,
    read_files,
    write_files,
    write_model_folder,
)
from tensorcast.client.naming import What, check_timeout, name_of, view_of
from tensorcast.client.past import AsyncPastCalls
from tensorcast.client.plan_calls import AsyncPlanCalls
from tensorcast.client.position import Position
from tensorcast.client.publishing import Progress, make_arena, publish
from tensorcast.client.replication import replicate, verify, wait_for_artifact
from tensorcast.client.rollouts import AsyncRolloutCalls
from tensorcast.client.signal_calls import AsyncSignalCalls
from tensorcast.client.socket import MoverSockets
from tensorcast.client.tickets import Tickets
from tensorcast.client.views import format_view
from tensorcast.schema.api import LIST_MAX, ArtifactInfo
from tensorcast.schema.origins import note_origin
from tensorcast.schema.socket import AskStats, Get, Granted, Stats
from tensorcast.schema.tensors import TensorSpec
from tensorcast.schema.views import Selected, View, resolve

if TYPE_CHECKING:
    import torch

    from tensorcast.client.calls import AsyncCalls
    from tensorcast.client.signals import AsyncSignals
    from tensorcast.client.spec import Spec

    Tensors = Mapping[str, torch.Tensor]
    Contents = Tensors | PathLike | Sequence[PathLike]

T = TypeVar("T")

GET_S = 300.0
THREADS_MAX = 8
INLINE_TENSORS_MAX = 1000


def connect_async(
    context: str | Context | None = None, *, node: str | None = None, timeout: float = REQUEST_S
) -> AsyncClient:
    """A client for `async with`. Arguments and errors as `connect`."""
    check_timeout(timeout)
    return AsyncClient(resolve_context(context, node, os.environ), timeout=timeout)


class AsyncClient(
    AsyncEngineCalls,
    AsyncBlockCalls,
    AsyncAuditCalls,
    AsyncPastCalls,
    AsyncSignalCalls,
    AsyncPlanCalls,
    AsyncRolloutCalls,
):
    """One application's access to a cluster: bytes through the mover of this machine, everything
    else through the control plane. Connects when it must; for one event loop."""

    def __init__(self, context: Context, *, timeout: float = REQUEST_S) -> None:
        self.context = context
        self.actor = name_actor()
        self.position = Position()
        self.api = ControlPlane(
            *(context.nats_url, context.cluster, self.actor, self.position),
            timeout_s=timeout,
            access=context.access,
        )
        self.mover = MoverSockets(context, self.actor)
        self.blocks = make_blocks(context, self.actor, vouch=Tickets(self.api).sign)
        self.addresses = Addresses(context.default_node)
        self.arenas: weakref.WeakSet[Arena] = weakref.WeakSet()
        self.readers: weakref.WeakSet[AsyncSignals | AsyncCalls] = weakref.WeakSet()
        self._threads = _make_threads()
        self._left_behind: list[ThreadPoolExecutor] = []

    def __repr__(self) -> str:
        return f"<AsyncClient of {self.context.cluster}, node {self.context.default_node}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Gives up the connections, and what readers of signals have fetched ahead. Tensors that
        were handed out stay valid. Safe to repeat."""
        for reader in tuple(self.readers):
            await reader.aclose()
        self.mover.close()
        self.blocks.close()
        await self.api.aclose()
        self._threads.shutdown(wait=False)

    # ---- bytes in ------------------------------------------------------------------------------

    async def put(
        self,
        contents: Contents,
        *,
        key: str | None = None,
        kind: str = "weights",
        labels: Mapping[str, str] | None = None,
        expect: What | None = None,
        progress: Progress | None = None,
        wait: bool | None = None,
    ) -> AsyncArtifact:
        """Makes an artifact of tensors (by name), of safetensors files, of a checkpoint folder or
        of a `.pt` file with weights only; gives it to `key` if one is named.

        Tensors that share memory keep sharing it; the same content gives the same artifact, with
        the kind and labels that it has from its first put: those of the answer. A key
        that points elsewhere moves only if `expect` is the artifact it points to (an id, or another
        key of it). Either all of it happens or nothing.

        With `wait` it returns when the artifact is sealed, without when the mover has accepted it.
        An accepted put is as safe as the node's memory: it is sealed soon, also when this process
        or the mover dies. What this client does later sees it, and so does who gets its key on this
        node. Its id is known once it is sealed (`await artifact.wait()`), which raises what a seal
        can still fail with: a Conflict, when another put of the key came first. By default
        tensors of `empty` are accepted, which takes no time; everything else is copied and sealed.

        Raises InvalidArgument or Corrupt for what cannot be put, NotFound for a missing file,
        Conflict for the key, OutOfCapacity when memory is full, Unavailable without a mover.
        """
        return await publish(
            self,
            contents,
            key=key,
            kind=kind,
            labels=labels or {},
            expect=expect,
            progress=progress,
            wait=wait,
        )

    async def empty(self, spec: Spec) -> dict[str, torch.Tensor]:
        """New tensors in memory of the local mover, with any content: fill them, and a `put` of
        them copies nothing.

        `spec` gives each name a tensor to be like (on any device, `meta` too), or (shape, dtype),
        or a shape (of torch's default dtype); or it is the index of an artifact. A put takes
        exactly these tensors, under these names and in this order; others, or some of them, are
        copied as usual. After their put they stay valid, and writing to them changes nobody
        else's. Memory that is not put goes back when the last of its tensors is gone, also when
        this process dies. A child that is forked before the put shares it, and must end first.

        Devices are not seen: before the put, everything that writes to these tensors by DMA must
        have ended and let go of them (buffers registered with io_uring, `cudaHostRegister`, RDMA
        memory regions, copies of a CUDA stream). Pinned pages outlast the mapping, so what is
        written to them later would change the sealed artifact itself.

        Raises InvalidArgument, OutOfCapacity, Unavailable.
        """
        from tensorcast.client.spec import lay_out_spec
        from tensorcast.client.tensors import build_tensors

        index, size_bytes = lay_out_spec(spec)
        selected = [Selected(item) for item in index]
        if not size_bytes:
            return build_tensors(None, selected)
        arena = await make_arena(self, index, size_bytes)
        tensors = build_tensors(memoryview(arena), selected)
        arena.note_places(tensors)
        return tensors

    # ---- bytes out -----------------------------------------------------------------------------

    async def get(
        self,
        what: What,
        *,
        names: Sequence[str] | str = (),
        view: View | None = None,
        copy: bool = False,
        check: bool = False,
        device: str | torch.device | None = None,
        timeout: float = GET_S,
    ) -> dict[str, torch.Tensor]:
        """The tensors of an artifact (key or id), or those in `names`, or those of a view.

        Nothing is copied: they lie in the mover's memory, mapped privately. They stay valid as long
        as they are used, whatever happens to the client, the artifact or the mover, and writing to
        them is seen by nobody else. With `copy` they are ordinary memory, with `check` all bytes of
        the artifact are compared with its digests first. When the node has no replica, one is made
        first.

        With `device` ("cuda:0") they are copied there, into memory of torch's: within the device
        where the node has a replica on it (`replicate(..., tier="gpu")`), else out of the node's
        memory. No stream of the application waits for that, and any may use them.

        Raises NotFound, InvalidArgument, Timeout, Unavailable, OutOfCapacity, Corrupt.
        """
        from tensorcast.client.tensors import build_tensors

        if device is not None and str(device) != "cpu":
            return await get_on(self, what, device, names, view, check=check, timeout=timeout)
        grant, memory = await self.grant(what, timeout=timeout)
        if check:
            await self.run(lambda stop: check_bytes(memory, grant.artifact, grant.manifest, stop))
        selected = select(names, view, grant.manifest.index)
        if not copy and len(selected) <= INLINE_TENSORS_MAX and "torch" in sys.modules:
            return build_tensors(memory, selected)  # quicker than to wake a thread for it
        return await self.run(lambda _: build_tensors(memory, selected, copy=copy))

    async def get_into(
        self,
        what: What,
        tensors: Tensors,
        *,
        view: View | None = None,
        strict: bool = True,
        timeout: float = GET_S,
    ) -> None:
        """Copies an artifact (or a view of it) into tensors that exist, by name. Tensors of a CUDA
        device are all on the same one; what the application has queued that uses them must be done.

        Names, dtypes and shapes are checked before anything is written. Without `strict`, names
        that only one side has are left out. Raises InvalidArgument for the first that does not fit,
        and as `get`.
        """
        from tensorcast.client.tensors import copy_into

        part = view_of(view)
        if (device := device_of(tensors)) is not None:
            return await get_into_on(self, what, device, tensors, part, strict, timeout)
        grant, memory = await self.grant(what, timeout=timeout)
        selected = resolve(part, grant.manifest.index)
        await self.run(lambda _: copy_into(memory, selected, tensors, strict=strict))

    async def export(
        self,
        what: What,
        path: PathLike,
        *,
        view: View | None = None,
        force: bool = False,
        progress: Progress | None = None,
        timeout: float = GET_S,
    ) -> str:
        """Writes an artifact (or a view) as safetensors; returns the path of the file.

        `path` is a file, or a folder (one that exists, or ends with '/') for `model.safetensors`;
        into a folder of this machine a whole artifact brings the files that travel with it. The
        file of a view says what it was made from, and a put of it knows (`lineage`).
        The file appears whole or not at all. Raises InvalidArgument when it exists and not
        `force`, OutOfCapacity when the disk is full, and as `get`.
        """
        written = await self.write_file(
            what, path, view=view, force=force, progress=progress, timeout=timeout
        )
        return written.path

    async def write_file(
        self,
        what: What,
        path: PathLike,
        *,
        view: View | None = None,
        force: bool = False,
        progress: Progress | None = None,
        timeout: float = GET_S,
    ) -> Written:
        """As `export`; also tells which artifact it was."""
        part = view_of(view)
        grant, memory = await self.grant(what, timeout=timeout)
        selected = resolve(part, grant.manifest.index)
        files = {} if view is not None else read_files(memory, grant.manifest.index)
        folder = find_folder(path)
        if folder is not None:
            check_files(files, folder, force=force)
        text = format_view(part)
        notes = note_origin(grant.artifact, f"view {text}") if text else {}
        target = await self.run(
            lambda stop: write_safetensors(
                memory, selected, path, force=force, stop=stop, progress=progress, notes=notes
            )
        )
        if folder is not None:
            await self.run(lambda _: write_files(files, folder, force=force))
        return Written(grant.artifact, target)

    async def files(self, what: What, *, timeout: float = GET_S) -> dict[str, bytes]:
        """The small files that travel with an artifact, by name. Raises Corrupt, and as `get`."""
        grant, memory = await self.grant(what, timeout=timeout)
        return read_files(memory, grant.manifest.index)

    async def write_files(
        self, what: What, folder: PathLike, *, force: bool = False, timeout: float = GET_S
    ) -> ModelFolder:
        """Writes the files that travel with an artifact into a folder, and a `tensorcast.json` that
        names the artifact: what an engine needs beside the weights.

        Raises NotFound when there are none, InvalidArgument when another file of one of the names
        is there and not `force`, and as `get`.
        """
        grant, memory = await self.grant(what, timeout=timeout)
        files = read_files(memory, grant.manifest.index)
        mark = Mark(artifact=grant.artifact, name=name_of(what))
        return await self.run(lambda _: write_model_folder(files, mark, folder, force=force))

    async def follow(
        self, what: What, *, excerpt: bool = False, timeout: float = GET_S
    ) -> AsyncArrival:
        """As `get` for who begins with what is there: returns as soon as the node has begun to
        bring the artifact, within `timeout`. `excerpt`: only what `Arrival.bring` asks for is
        needed; no more comes to a node that has nothing of it. Raises as `get`."""
        return await follow(self, what, timeout, excerpt=excerpt)

    async def grant(
        self, what: What, *, timeout: float = GET_S
    ) -> tuple[Granted, MemoryMapping | None]:
        """The right to read an artifact, and its mapped bytes (None when it has none)."""
        check_timeout(timeout)
        await self.position.settled()
        request = Get(what=name_of(what), after=self.position.seq, timeout_s=timeout)
        answer, descriptors = await self.mover.ask(request, Granted, timeout=timeout)
        return answer, map_segment(descriptors, answer.manifest.size_bytes)

    # ---- everything else -----------------------------------------------------------------------

    async def artifact(self, what: What) -> AsyncArtifact:
        """An artifact by key or id. Raises NotFound."""
        await self.position.settled()
        info = await self.api.artifact(what)
        index = tuple(
            TensorSpec(
                name=t.name, dtype=t.dtype, shape=t.shape, offset=t.offset, strides=t.strides
            )
            for t in await self.api.tensors(info.id)
        )
        return AsyncArtifact(self, info.id, info.kind, info.labels, index)

    async def artifacts(
        self, *, node: str | None = None, limit: int = LIST_MAX
    ) -> tuple[ArtifactInfo, ...]:
        """The artifacts, newest first; with `node`, those that have a replica there."""
        return await self.api.artifacts(node=node, limit=limit)

    async def operation(self, operation: str) -> AsyncOperation:
        """An operation by its id. Raises NotFound."""
        return AsyncOperation(self.api, await self.api.operation(operation))

    async def replicate(
        self, what: What, *, to: Sequence[str] | str, tier: str = "dram"
    ) -> AsyncReplication:
        """Asks for replicas of an artifact on nodes ("all": every node that is up), to stay there.
        Returns at once; `.wait()` follows it. Raises NotFound, InvalidArgument, and Unavailable
        when a named node is down.
        """
        await self.position.settled()
        return await replicate(self.api, what, to=to, tier=tier)

    async def verify(
        self,
        what: What,
        *,
        node: str | None = None,
        timeout: float | None = None,
        check: bool = True,
    ) -> tuple[AsyncOperation, ...]:
        """Has all replicas of an artifact (or those on `node`) checked against their digests, and
        waits for it. Raises Corrupt when bytes do not match (without `check` all operations are
        returned, those that failed too), NotFound without a replica, Timeout."""
        check_timeout(timeout)
        await self.position.settled()
        return await verify(self.api, what, node=node, timeout=timeout, check=check)

    async def wait(self, what: What, *, timeout: float = 60.0) -> AsyncArtifact:
        """Waits until a key or id exists and a replica of it is ready. Raises Timeout."""
        check_timeout(timeout)
        await self.position.settled()
        await wait_for_artifact(self.api, what, timeout)
        return await self.artifact(what)

    def lease(self, what: What, *, ttl: float = 60.0, node: str | None = None) -> AsyncLease:
        """Keeps replicas (on `node`, or all) from eviction during `async with`. The lease is
        renewed in the background; when the process dies it expires after `ttl` seconds."""
        return AsyncLease(self.api, what, ttl_s=ttl, node=node, holder=self.actor)

    async def stats(self) -> Stats:
        """Counts of the local mover, for diagnosis."""
        answer, _ = await self.mover.ask(AskStats(), Stats)
        return answer

    async def run(self, work: Callable[[threading.Event], T]) -> T:
        """Runs `work` in a thread, so that the event loop goes on. When the caller is cancelled the
        event that `work` got is set, and the thread's end is awaited."""
        stop = threading.Event()
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._threads, work, stop)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            stop.set()
            await asyncio.wait([future])
            raise
        finally:
            del future  # it holds the error, which holds this frame and those of the callers

    def forget_connections(self) -> None:
        """In a forked child: leaves the parent's connections and threads to the parent."""
        self._left_behind.append(self._threads)
        self._threads = _make_threads()
        self.arenas = weakref.WeakSet()
        self.mover.forget()
        self.blocks.forget()
        self.api.forget()
        self.position.forget()


def _make_threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="tensorcast")
