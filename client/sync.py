"""The client for ordinary programs: the same surface, each call waits for its answer.

One background thread runs the event loop of an `AsyncClient`; any number of threads may call. After
a fork the child makes its own thread and connections at its first call.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tensorcast.client.api import REQUEST_S
from tensorcast.client.arrivals import AsyncArrival
from tensorcast.client.blocks_calls import BlockCalls
from tensorcast.client.context import Context
from tensorcast.client.facade import Facade, settle, waited
from tensorcast.client.handles import AsyncArtifact, AsyncOperation, AsyncReplication
from tensorcast.client.leases import AsyncLease
from tensorcast.client.memory import Mapping as MemoryMapping
from tensorcast.client.naming import What
from tensorcast.client.past_sync import History, Past
from tensorcast.client.past_verbs import When
from tensorcast.client.plan_sync import PlanCalls
from tensorcast.client.portal import Portal, documented_as
from tensorcast.client.queries import Queries
from tensorcast.client.rollouts_sync import RolloutCalls
from tensorcast.client.session import GET_S, AsyncClient, connect_async
from tensorcast.client.signals_sync import SignalCalls
from tensorcast.schema.api import OperationInfo, ReplicasProgress
from tensorcast.schema.chunks import ByteRange
from tensorcast.schema.ids import ArtifactId, EventId, LeaseId, NodeId, OperationId
from tensorcast.schema.tensors import Index

if TYPE_CHECKING:
    from tensorcast.client.publishing import Progress
    from tensorcast.client.session import Contents


class Artifact(Facade[AsyncArtifact]):
    """Sealed content: its id, kind, labels and index never change. Of a put that is accepted and
    not yet sealed, `id`, `kind` and `labels` wait for the seal, and raise what it failed with."""

    @property
    def is_sealed(self) -> bool:
        """Whether its id is known already."""
        return self._inner.is_sealed

    @property
    def id(self) -> ArtifactId:
        self.wait()
        return self._inner.id

    @property
    def kind(self) -> str:
        self.wait()
        return self._inner.kind

    @property
    def labels(self) -> dict[str, str]:
        self.wait()
        return self._inner.labels

    @property
    def index(self) -> Index:
        return self._inner.index

    def become_known(self) -> None:
        """Waits until it is sealed: its id is asked for."""
        self.wait()

    def wait(self, timeout: float | None = None) -> Self:
        """Waits until it is sealed. Raises Timeout, and what the seal failed with."""
        if not self._inner.is_sealed:
            self._portal.run(self._inner.wait(timeout))
        return self

    info = waited(AsyncArtifact.info)
    replicas = waited(AsyncArtifact.replicas)
    history = waited(AsyncArtifact.history)
    tensors = waited(AsyncArtifact.tensors)


class Operation(Facade[AsyncOperation]):
    """One unit of work of one node, as it was when it was last asked for (`refresh`, `wait`)."""

    @property
    def id(self) -> OperationId:
        return self._inner.id

    @property
    def kind(self) -> str:
        return self._inner.kind

    @property
    def node(self) -> NodeId:
        return self._inner.node

    @property
    def artifact(self) -> ArtifactId:
        return self._inner.artifact

    @property
    def status(self) -> str:
        """issued, running, succeeded, failed or cancelled."""
        return self._inner.status

    @property
    def info(self) -> OperationInfo:
        """All that is known of it."""
        return self._inner.info

    refresh = waited(AsyncOperation.refresh)
    wait = waited(AsyncOperation.wait)
    settle = waited(AsyncOperation.settle)
    cancel = waited(AsyncOperation.cancel)
    events = waited(AsyncOperation.events)


class Replication(Facade[AsyncReplication]):
    """A request for replicas on nodes, and the operations that came of it so far."""

    kind = AsyncReplication.kind

    @property
    def id(self) -> EventId:
        """The event that holds the request."""
        return self._inner.id

    @property
    def artifact(self) -> ArtifactId:
        return self._inner.artifact

    @property
    def node(self) -> str:
        """The nodes, with commas."""
        return self._inner.node

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        return self._inner.nodes

    @property
    def status(self) -> str:
        """issued, running, succeeded or failed."""
        return self._inner.status

    @property
    def progress(self) -> ReplicasProgress | None:
        """How far it was at the last `refresh` or `wait`."""
        return self._inner.progress

    @property
    def operations(self) -> tuple[Operation, ...]:
        """The operations that were known at the last `refresh` or `wait`."""
        return tuple(Operation(self._portal, found) for found in self._inner.operations)

    refresh = waited(AsyncReplication.refresh)
    wait = waited(AsyncReplication.wait)
    cancel = waited(AsyncReplication.cancel)
    events = waited(AsyncReplication.events)


class Arrival(Facade[AsyncArrival]):
    """An artifact that is here, or on its way: see `AsyncArrival`."""

    wait = waited(AsyncArrival.wait)
    bring = waited(AsyncArrival.bring)

    @documented_as(AsyncArrival.prefault)
    def prefault(self) -> None:
        """As `AsyncArrival.prefault`."""
        self._inner.prefault()

    def has(self, place: ByteRange) -> bool:
        """Whether these bytes of the byte space may be read."""
        return self._inner.has(place)

    @property
    def artifact(self) -> ArtifactId:
        return self._inner.artifact

    @property
    def index(self) -> Index:
        return self._inner.index

    @property
    def memory(self) -> MemoryMapping | None:
        """Its byte space, mapped; None when it has no bytes."""
        return self._inner.memory

    @property
    def is_whole(self) -> bool:
        """Whether all bytes are there."""
        return self._inner.is_whole

    @property
    def is_excerpt(self) -> bool:
        """Whether no more comes than what `bring` asks for."""
        return self._inner.is_excerpt

    @property
    def size_bytes(self) -> int:
        """How long its byte space is."""
        return self._inner.size_bytes

    @property
    def here_bytes(self) -> int:
        """How many bytes are there, in whole chunks."""
        return self._inner.here_bytes


class Lease(Facade[AsyncLease]):
    """Keeps an artifact's replicas from eviction during `with`."""

    @property
    def id(self) -> LeaseId:
        return self._inner.id

    @property
    def artifact(self) -> ArtifactId | None:
        """Known once the lease is held."""
        return self._inner.artifact

    def __enter__(self) -> Self:
        self._portal.run(self._inner.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._portal.run(self._inner.__aexit__(kind, error, trace))


class Client(Facade[AsyncClient], BlockCalls, SignalCalls, PlanCalls, RolloutCalls):
    """One application's access to a cluster: see `AsyncClient`, whose surface it has. `api` asks
    the control plane. For any number of threads, and for children that are forked."""

    def __init__(self, inner: AsyncClient) -> None:
        super().__init__(Portal(), inner)
        self.api = Queries(self._portal, inner.api)
        _clients.add(self)

    @property
    def context(self) -> Context:
        """Which cluster this is, and how it is reached."""
        return self._inner.context

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Gives up the connections. Tensors that were handed out stay valid. Safe to repeat."""
        if not self._portal.is_closed:
            self._portal.run(self._inner.aclose())
            self._portal.close()

    get = waited(AsyncClient.get)
    get_into = waited(AsyncClient.get_into)
    empty = waited(AsyncClient.empty)
    export = waited(AsyncClient.export)
    write_file = waited(AsyncClient.write_file)
    files = waited(AsyncClient.files)
    write_files = waited(AsyncClient.write_files)
    artifacts = waited(AsyncClient.artifacts)
    stats = waited(AsyncClient.stats)
    emit = waited(AsyncClient.emit)
    signal_readers = waited(AsyncClient.signal_readers)
    forget_reader = waited(AsyncClient.forget_reader)
    acknowledge = waited(AsyncClient.acknowledge)
    barrier = waited(AsyncClient.barrier)
    topic_shapes = waited(AsyncClient.topic_shapes)
    define_topic = waited(AsyncClient.define_topic)
    engines = waited(AsyncClient.engines)
    engine = waited(AsyncClient.engine)
    weights_of = waited(AsyncClient.weights_of)
    verify_log = waited(AsyncClient.verify_log)
    export_log = waited(AsyncClient.export_log)
    import_log = waited(AsyncClient.import_log)
    publish = waited(AsyncClient.publish)
    read_keys = waited(AsyncClient.read_keys)
    lineage = waited(AsyncClient.lineage)

    @documented_as(AsyncClient.put)
    def put(
        self,
        contents: Contents,
        *,
        key: str | None = None,
        kind: str = "weights",
        labels: Mapping[str, str] | None = None,
        expect: What | None = None,
        progress: Progress | None = None,
        wait: bool | None = None,
    ) -> Artifact:
        """As `AsyncClient.put`; `progress(done_bytes, total_bytes)` is called from threads."""
        settle(expect)
        work = self._inner.put(
            contents,
            key=key,
            kind=kind,
            labels=labels,
            expect=expect,
            progress=progress,
            wait=wait,
        )
        return Artifact(self._portal, self._portal.run(work))

    def artifact(self, what: What) -> Artifact:
        """An artifact by key or id. Raises NotFound."""
        settle(what)
        return Artifact(self._portal, self._portal.run(self._inner.artifact(what)))

    def wait(self, what: What, *, timeout: float = 60.0) -> Artifact:
        """Waits until a key or id exists and a replica of it is ready. Raises Timeout."""
        settle(what)
        return Artifact(self._portal, self._portal.run(self._inner.wait(what, timeout=timeout)))

    @documented_as(AsyncClient.follow)
    def follow(self, what: What, *, excerpt: bool = False, timeout: float = GET_S) -> Arrival:
        """As `AsyncClient.follow`."""
        settle(what)
        work = self._inner.follow(what, excerpt=excerpt, timeout=timeout)
        return Arrival(self._portal, self._portal.run(work))

    def operation(self, operation: str) -> Operation:
        """An operation by its id. Raises NotFound."""
        return Operation(self._portal, self._portal.run(self._inner.operation(operation)))

    @documented_as(AsyncClient.replicate)
    def replicate(self, what: What, *, to: Sequence[str] | str, tier: str = "dram") -> Replication:
        """As `AsyncClient.replicate`."""
        settle(what)
        work = self._inner.replicate(what, to=to, tier=tier)
        return Replication(self._portal, self._portal.run(work))

    @documented_as(AsyncClient.verify)
    def verify(
        self,
        what: What,
        *,
        node: str | None = None,
        timeout: float | None = None,
        check: bool = True,
    ) -> tuple[Operation, ...]:
        """As `AsyncClient.verify`."""
        settle(what)
        work = self._inner.verify(what, node=node, timeout=timeout, check=check)
        found = self._portal.run(work)
        return tuple(Operation(self._portal, operation) for operation in found)

    @documented_as(AsyncClient.history)
    def history(
        self,
        *,
        artifact: What | None = None,
        node: str | None = None,
        key: str | None = None,
        operation: str | None = None,
        engine: str | None = None,
        plan: str | None = None,
        actor: str | None = None,
        types: Sequence[str] | str = (),
        after: When | None = None,
        until: When | None = None,
        limit: int | None = None,
    ) -> History:
        """As `AsyncClient.history`."""
        settle(artifact)
        inner = self._inner.history(
            artifact=artifact,
            node=node,
            key=key,
            operation=operation,
            engine=engine,
            plan=plan,
            actor=actor,
            types=types,
            after=after,
            until=until,
            limit=limit,
        )
        return History(self._portal, inner)

    @documented_as(AsyncClient.at)
    def at(self, when: When) -> Past:
        """As `AsyncClient.at`."""
        return Past(self._portal, self._portal.run(self._inner.at(when)))

    @documented_as(AsyncClient.lease)
    def lease(self, what: What, *, ttl: float = 60.0, node: str | None = None) -> Lease:
        """As `AsyncClient.lease`."""
        settle(what)
        return Lease(self._portal, self._inner.lease(what, ttl=ttl, node=node))

    def forget_connections(self) -> None:
        """In a forked child: leaves the parent's thread and connections to the parent."""
        self._portal.forget()
        self._inner.forget_connections()


def connect(
    context: str | Context | None = None, *, node: str | None = None, timeout: float = REQUEST_S
) -> Client:
    """A client of the cluster that `context` names, or that the environment or the last `tcctl up`
    on this machine tells; `node` is the mover to use if this machine has several, `timeout` how
    long the control plane may take for an answer.

    Connects at the first call that needs it. Raises Unavailable when no cluster is known here,
    NotFound for an unknown context or node.
    """
    return Client(connect_async(context, node=node, timeout=timeout))


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _forget_all() -> None:
    for client in list(_clients):
        client.forget_connections()


os.register_at_fork(after_in_child=_forget_all)
