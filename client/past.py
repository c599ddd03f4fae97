"""The past for applications: events as they happened, and the state as it was."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Protocol, Self

import msgspec

from tensorcast.client.naming import What, name_of
from tensorcast.client.past_verbs import PAST_S, When, split_when
from tensorcast.schema.api import (
    LIST_MAX,
    ArtifactInfo,
    AuditQuery,
    Browse,
    EngineInfo,
    EventInfo,
    KeyInfo,
    NodeInfo,
    OperationInfo,
    ReplayInfo,
    ReplayQuery,
    ServedInfo,
    Show,
    TensorInfo,
)
from tensorcast.schema.api_past import LineageInfo, MomentInfo
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.ids import Key, Seq, parse_node

if TYPE_CHECKING:
    from tensorcast.client.api import ControlPlane


class AsyncHistory:
    """Events in the order of the log, asked for page by page as they are read. `cursor` is the
    position of the last one that was given: `after=cursor` goes on there."""

    def __init__(self, api: ControlPlane, query: AuditQuery) -> None:
        self._api = api
        self._query = query
        self._left = query.limit
        self._page: list[EventInfo] = []
        self._is_over = False
        self.cursor = query.since

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> EventInfo:
        if not self._page:
            self._page = [*reversed(await self.next_page())]
        if not self._page:
            raise StopAsyncIteration
        event = self._page.pop()
        self.cursor = event.seq
        return event

    async def next_page(self) -> tuple[EventInfo, ...]:
        """The events that come next, as many as one answer carries; none at the end."""
        if self._is_over or self._left <= 0:
            return ()
        query = msgspec.structs.replace(self._query, limit=min(self._left, LIST_MAX))
        page = await self._api.audit_page(query)
        self._left -= len(page)
        self._is_over = not page
        if page:
            self._query = msgspec.structs.replace(self._query, since=page[-1].seq)
        return page


class AsyncPast:
    """The state as it was after one event. Read-only; the same answers as those of the present."""

    def __init__(self, api: ControlPlane, moment: MomentInfo, time: datetime | None) -> None:
        self._api = api
        self.seq = moment.seq
        self.time = time or moment.at

    def __repr__(self) -> str:
        return f"<{type(self).__name__} after event {self.seq}>"

    async def artifacts(
        self, *, node: str | None = None, status: str | None = None, limit: int = LIST_MAX
    ) -> tuple[ArtifactInfo, ...]:
        """The artifacts that there were, newest first; those with a replica on `node`."""
        query = self._browse(node=node, status=status, limit=limit)
        return await self._api.ask("artifact.list", query, tuple[ArtifactInfo, ...], timeout=PAST_S)

    async def artifact(self, what: What) -> ArtifactInfo:
        """One artifact, by a key as it pointed then or an id. Raises NotFound."""
        return await self._api.ask("artifact.show", self._show(what), ArtifactInfo, timeout=PAST_S)

    async def tensors(self, what: What) -> tuple[TensorInfo, ...]:
        """The tensors of such an artifact. Raises NotFound."""
        show = self._show(what)
        return await self._api.ask("artifact.tensors", show, tuple[TensorInfo, ...], timeout=PAST_S)

    async def keys(
        self, *, artifact: What | None = None, limit: int = LIST_MAX
    ) -> tuple[KeyInfo, ...]:
        """The keys that pointed to something, or to one artifact; the last moved first."""
        named = None if artifact is None else name_of(artifact)
        query = self._browse(artifact=named, limit=limit)
        return await self._api.ask("key.list", query, tuple[KeyInfo, ...], timeout=PAST_S)

    async def key(self, key: str) -> KeyInfo:
        """Where a key pointed, and had pointed before. Raises NotFound."""
        return await self._api.ask("key.show", self._show(key), KeyInfo, timeout=PAST_S)

    async def nodes(self, *, status: str | None = None) -> tuple[NodeInfo, ...]:
        """All nodes that had joined (or those of `status`)."""
        query = self._browse(status=status)
        return await self._api.ask("node.list", query, tuple[NodeInfo, ...], timeout=PAST_S)

    async def node(self, node: str) -> NodeInfo:
        """One node. Raises NotFound."""
        return await self._api.ask("node.show", self._show(node), NodeInfo, timeout=PAST_S)

    async def operations(
        self,
        *,
        status: str | None = None,
        node: str | None = None,
        artifact: What | None = None,
        limit: int = LIST_MAX,
    ) -> tuple[OperationInfo, ...]:
        """The operations, newest first; of one status, node or artifact."""
        named = None if artifact is None else name_of(artifact)
        query = self._browse(status=status, node=node, artifact=named, limit=limit)
        answer = tuple[OperationInfo, ...]
        return await self._api.ask("operation.list", query, answer, timeout=PAST_S)

    async def operation(self, operation: str) -> OperationInfo:
        """One operation. Raises NotFound."""
        show = self._show(operation)
        return await self._api.ask("operation.show", show, OperationInfo, timeout=PAST_S)

    async def engines(
        self, *, status: str | None = None, node: str | None = None
    ) -> tuple[EngineInfo, ...]:
        """The engines that ran (or those of `status`: up, left, lost, all); those of one node."""
        query = self._browse(status=status, node=node)
        return await self._api.ask("engine.list", query, tuple[EngineInfo, ...], timeout=PAST_S)

    async def engine(self, engine: str) -> EngineInfo:
        """One engine with the weights that it had served. Raises NotFound."""
        return await self._api.ask("engine.show", self._show(engine), EngineInfo, timeout=PAST_S)

    async def weights_of(self, engine: str) -> ServedInfo:
        """Which weights an engine served at this time. Raises NotFound."""
        if self.time is None:
            raise InvalidArgument("Nothing had happened yet.", hint="Choose a later moment.")
        return await self._api.weights_of(engine, at=self.time)

    async def lineage(self, what: What) -> LineageInfo:
        """The lineage of an artifact as far as it was known then. Raises NotFound."""
        return await self._api.lineage(what, at=self.seq)

    async def state(
        self, kind: str | None = None, what: str | None = None, *, limit: int = LIST_MAX
    ) -> ReplayInfo:
        """All of it at once, or what concerns one artifact, key, node, operation, engine or
        plan."""
        return await self._api.replay(
            ReplayQuery(to_seq=self.seq, kind=kind, what=what, limit=limit)
        )

    def _show(self, what: What) -> Show:
        return Show(what=name_of(what), at=self.seq)

    def _browse(
        self,
        *,
        limit: int = LIST_MAX,
        status: str | None = None,
        node: str | None = None,
        artifact: str | None = None,
    ) -> Browse:
        place = parse_node(node) if node is not None else None
        return Browse(limit=limit, status=status, node=place, artifact=artifact, at=self.seq)


class _Client(Protocol):
    @property
    def api(self) -> ControlPlane: ...


class AsyncPastCalls:
    """What applications ask about the past; part of `AsyncClient`."""

    def history(
        self: _Client,
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
    ) -> AsyncHistory:
        """The events that meet all conditions, one after the other in the order of the log, as long
        as it is (or `limit` of them): for any length, since they are asked for page by page.

        Those of an artifact include its replicas, operations, leases, keys and the engines that
        served it. In `types` and `actor`, `*` stands for any text (`replica.*`). `after` and
        `until` are positions (events after the first, up to the second) or times, both included.
        Raises NotFound for a name that nothing has or had, InvalidArgument.
        """
        after_seq, time_from = split_when(after)
        until_seq, time_to = split_when(until)
        query = AuditQuery(
            artifact=None if artifact is None else name_of(artifact),
            node=None if node is None else parse_node(node),
            key=None if key is None else Key(key),
            operation=operation,
            engine=engine,
            plan=plan,
            actor=actor,
            types=(types,) if isinstance(types, str) else tuple(types),
            since=after_seq or Seq(0),
            before=None if until_seq is None else Seq(until_seq + 1),
            time_from=time_from,
            time_to=time_to,
            limit=(1 << 62) if limit is None else limit,
        )
        return AsyncHistory(self.api, query)

    async def at(self: _Client, when: When) -> AsyncPast:
        """The state as it was after an event (its position, an int) or at a time (a datetime, or a
        float as `time.time()` gives it): read-only. Raises InvalidArgument for what is yet to
        come."""
        moment = await self.api.moment(when)
        return AsyncPast(self.api, moment, split_when(when)[1])

    async def lineage(self: _Client, what: What) -> LineageInfo:
        """Where an artifact comes from and what it was used for: who sealed it when, what it was
        made from, which keys pointed to it and which engines served it, from when to when. Raises
        NotFound."""
        return await self.api.lineage(what)
