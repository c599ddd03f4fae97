"""What calls give back: artifacts, operations and replications that can be asked and waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Self, TypeVar

from tensorcast.client.accepted import Accepted
from tensorcast.client.api import WAIT_S, ControlPlane
from tensorcast.client.faults import failure_of, failures_of
from tensorcast.schema.api import (
    LIST_MAX,
    ArtifactInfo,
    AuditQuery,
    EventInfo,
    OperationInfo,
    ReplicaInfo,
    ReplicasProgress,
)
from tensorcast.schema.errors import InvalidArgument, Timeout, Unavailable
from tensorcast.schema.ids import ArtifactId, EventId, NodeId, OperationId, Tier
from tensorcast.schema.socket import PutSealed
from tensorcast.schema.tensors import Index
from tensorcast.schema.views import View
from tensorcast.schema.wording import tell_count

if TYPE_CHECKING:
    import torch

    from tensorcast.client.session import AsyncClient

T = TypeVar("T")
Report = Callable[[ReplicasProgress], None]

OUTAGE_S_MAX = 20.0
"""A wait goes on while the control plane restarts, for so long at a time."""
REPORT_S = 0.25
SETTLE_S = 2.0
ENDED = frozenset({"succeeded", "failed", "cancelled"})


class AsyncArtifact:
    """Sealed content: its id, kind, labels and index never change. Of a put that is accepted and
    not yet sealed the id is not known before `wait`; every other method waits itself."""

    def __init__(
        self,
        client: AsyncClient,
        artifact: ArtifactId | Accepted,
        kind: str,
        labels: Mapping[str, str],
        index: Index,
    ) -> None:
        self._client = client
        self._accepted = None if isinstance(artifact, str) else artifact
        self._id = artifact if isinstance(artifact, str) else None
        self._kind = kind
        self._labels = dict(labels)
        self.index = index

    @property
    def is_sealed(self) -> bool:
        """Whether its id is known. False also when the seal has failed."""
        return self._id is not None or self._sealed is not None

    @property
    def id(self) -> ArtifactId:
        """Raises InvalidArgument before it is sealed."""
        if self._id is not None:
            return self._id
        if self._sealed is None:
            raise InvalidArgument(
                "The artifact is not sealed yet, so its id is not known.",
                hint="Call .wait() first, or put with wait=True.",
            )
        return self._sealed.artifact

    @property
    def kind(self) -> str:
        """Before it is sealed, that of the put."""
        return self._kind if self._sealed is None else self._sealed.kind

    @property
    def labels(self) -> dict[str, str]:
        """Before it is sealed, those of the put."""
        return self._labels if self._sealed is None else self._sealed.labels

    @property
    def _sealed(self) -> PutSealed | None:
        return self._accepted.sealed if self._accepted else None

    async def wait(self, timeout: float | None = None) -> Self:
        """Waits until it is sealed (at once, unless it was put without waiting). Raises Timeout,
        and what the seal failed with."""
        if self._accepted is not None:
            await self._accepted.wait(timeout)
        return self

    async def info(self) -> ArtifactInfo:
        """State, size, keys and replicas as they are now. Raises NotFound when it was removed."""
        await self.wait()
        return await self._client.api.artifact(self.id)

    async def replicas(self) -> tuple[ReplicaInfo, ...]:
        """Where its bytes are now."""
        return (await self.info()).replicas

    async def history(self, *, limit: int = LIST_MAX) -> tuple[EventInfo, ...]:
        """Every event about it, in the order of the log."""
        await self.wait()
        return await self._client.api.history(self.id, limit=limit)

    async def tensors(
        self, names: tuple[str, ...] | list[str] | str = (), *, view: View | None = None
    ) -> dict[str, torch.Tensor]:
        """Its tensors, as `AsyncClient.get`; `names` are exact names, in place of a view. Raises
        NotFound, InvalidArgument."""
        await self.wait()
        return await self._client.get(self.id, names=names, view=view)

    def __repr__(self) -> str:
        name = self.id if self.is_sealed else "not sealed yet,"
        tensors = tell_count(len(self.index), "tensor")
        return f"<{type(self).__name__} {name} {self.kind}, {tensors}>"


class AsyncOperation:
    """One unit of work of one node, as it was when it was last asked for (`refresh`, `wait`)."""

    def __init__(self, api: ControlPlane, info: OperationInfo) -> None:
        self._api = api
        self.info = info

    @property
    def id(self) -> OperationId:
        return self.info.id

    @property
    def kind(self) -> str:
        return self.info.kind

    @property
    def node(self) -> NodeId:
        return self.info.node

    @property
    def artifact(self) -> ArtifactId:
        return self.info.artifact

    @property
    def status(self) -> str:
        """issued, running, succeeded, failed or cancelled."""
        return self.info.status

    async def refresh(self) -> OperationInfo:
        """Asks how it is now."""
        self.info = await self._api.operation(self.id)
        return self.info

    async def wait(
        self, timeout: float | None = None, *, report: Callable[[OperationInfo], None] | None = None
    ) -> OperationInfo:
        """Waits until it has succeeded (None: as long as it takes); calls `report` now and then.

        Raises Timeout, Cancelled, or the error that made it fail.
        """
        if (await self.settle(timeout, report=report)).status != "succeeded":
            raise failure_of(self.info)
        return self.info

    async def settle(
        self, timeout: float | None = None, *, report: Callable[[OperationInfo], None] | None = None
    ) -> OperationInfo:
        """Waits until it has ended, well or badly. Raises Timeout."""

        async def ask(timeout_s: float) -> OperationInfo:
            self.info = await self._api.wait_operation(self.id, timeout=timeout_s)
            return self.info

        return await wait_until(
            ask,
            lambda info: info.status in ENDED,
            timeout,
            report,
            Timeout(
                f"Operation {self.id} on {self.node} has not ended in {timeout} s.",
                hint=f"It goes on: see `tcctl op show {self.id}`.",
                artifact=self.artifact,
                node=self.node,
                operation=self.id,
            ),
        )

    async def cancel(self) -> None:
        """Cancels it; what it moved is dropped. Raises Rejected when it has ended."""
        await self._api.cancel(self.id)

    async def events(self) -> tuple[EventInfo, ...]:
        """What happened to it, in the order of the log."""
        return await self._api.audit(AuditQuery(what=self.id))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.kind} on {self.node}: {self.status}>"


class AsyncReplication:
    """A request for replicas on nodes, and the operations that came of it so far. `id` is the event
    that holds the request (`tcctl audit log --chain ID`); operations have ids of their own."""

    kind = "replicate"

    def __init__(
        self,
        api: ControlPlane,
        artifact: ArtifactId,
        nodes: tuple[NodeId, ...],
        tier: Tier,
        request: EventId,
    ) -> None:
        self._api = api
        self.id = request
        self.artifact = artifact
        self.nodes = nodes
        self.tier = tier
        self.progress: ReplicasProgress | None = None

    @property
    def node(self) -> str:
        """The nodes, with commas."""
        return ",".join(self.nodes)

    @property
    def status(self) -> str:
        """issued, running, succeeded or failed."""
        if self.progress is None:
            return "issued"
        if not self.progress.done:
            return "running"
        return "failed" if self.progress.failed else "succeeded"

    @property
    def operations(self) -> tuple[AsyncOperation, ...]:
        """The operations of the request that were known at the last `refresh` or `wait`."""
        known = self.progress.operations if self.progress else ()
        return tuple(AsyncOperation(self._api, info) for info in known)

    async def refresh(self) -> ReplicasProgress:
        """Asks how far it is now."""
        return await self._ask(0.0)

    async def wait(
        self, timeout: float | None = None, *, report: Report | None = None
    ) -> ReplicasProgress:
        """Waits until every node has its replica (None: as long as it takes); calls `report` now
        and then.

        Raises Timeout, or the error of the first operation that will not succeed.
        """
        progress = await wait_until(
            self._ask,
            lambda progress: progress.done,
            timeout,
            report,
            Timeout(
                f"The replicas of {self.artifact} on {self.node} are not ready in {timeout} s.",
                hint=f"The operations go on: see `tcctl op ls --artifact {self.artifact}`.",
                artifact=self.artifact,
                node=self.node,
            ),
        )
        if progress.failed:
            raise failures_of(progress.failed)
        return await self._settle(progress)

    async def cancel(self) -> None:
        """Cancels those of its operations that have not ended; when all have, it does nothing."""
        progress = await self.refresh()
        for info in progress.operations:
            if info.status not in ENDED:
                await self._api.cancel(info.id, reason="the replication was cancelled")

    async def events(self) -> tuple[EventInfo, ...]:
        """What happened to its operations, in the order of the log."""
        progress = await self.refresh()
        found = [
            event
            for info in progress.operations
            for event in await self._api.audit(AuditQuery(what=info.id))
        ]
        return tuple(sorted(found, key=lambda event: event.seq))

    async def _settle(self, progress: ReplicasProgress) -> ReplicasProgress:
        """A replica is ready a moment before its operation has ended: waits that moment, so that
        what is shown afterwards fits together."""
        still_open = [info.id for info in progress.operations if info.status not in ENDED]
        for operation in still_open:
            await self._api.wait_operation(operation, timeout=SETTLE_S)
        return await self.refresh() if still_open else progress

    async def _ask(self, timeout_s: float) -> ReplicasProgress:
        self.progress = await self._api.wait_replicas(
            self.artifact, self.nodes, self.tier, self.id, timeout=timeout_s
        )
        return self.progress

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.artifact} to {self.node}: {self.status}>"


async def wait_until(
    ask: Callable[[float], Awaitable[T]],
    is_settled: Callable[[T], bool],
    timeout: float | None,
    report: Callable[[T], None] | None,
    late: Timeout,
) -> T:
    """Asks again and again until the answer is settled; raises `late` after `timeout`.

    Goes on while the control plane is away for up to OUTAGE_S_MAX at a time.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + (timeout if timeout is not None else float("inf"))
    step_s = REPORT_S if report else WAIT_S
    heard_at = clock()
    while True:
        try:
            answer = await ask(max(0.0, min(step_s, deadline - clock())))
        except (Unavailable, Timeout):
            if clock() - heard_at > OUTAGE_S_MAX or clock() > deadline:
                raise
            await asyncio.sleep(0.2)
            continue
        heard_at = clock()
        if report:
            report(answer)
        if is_settled(answer):
            return answer
        if clock() >= deadline:
            raise late
