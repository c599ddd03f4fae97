"""What clients ask the control plane: one NATS request for each verb, each a typed method.

The connection is made at the first request, so a client that only reads from its local mover never
needs the control plane. Every wait is bounded; an absent control plane is told at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from tensorcast.client.access_verbs import AccessVerbs
from tensorcast.client.audit_verbs import AuditVerbs
from tensorcast.client.block_verbs import BlockVerbs
from tensorcast.client.connection import (
    HINT,
    Refusals,
    close_soon,
    connect_nats,
    key_changed_at,
    wait_connected,
)
from tensorcast.client.engine_block_verbs import EngineBlockVerbs
from tensorcast.client.engine_verbs import EngineVerbs
from tensorcast.client.faults import encode_request
from tensorcast.client.naming import What, name_of
from tensorcast.client.past_verbs import PastVerbs
from tensorcast.client.patience import SILENCE_S, Patience
from tensorcast.client.plan_verbs import PlanVerbs
from tensorcast.client.policy_verbs import PolicyVerbs
from tensorcast.client.position import Position
from tensorcast.client.signal_verbs import SignalVerbs
from tensorcast.client.store_verbs import StoreVerbs
from tensorcast.schema import subjects
from tensorcast.schema.access import Access
from tensorcast.schema.api import (
    LIST_MAX,
    ArtifactInfo,
    Ask,
    AuditQuery,
    Browse,
    ClusterStatus,
    EventInfo,
    Execute,
    Executed,
    KeyInfo,
    NodeInfo,
    OperationInfo,
    ReplayInfo,
    ReplayQuery,
    ReplicasProgress,
    Show,
    TensorInfo,
    WaitOperation,
    WaitReplicas,
    parse_reply,
)
from tensorcast.schema.commands import (
    CancelOperation,
    Command,
    CordonNode,
    DrainNode,
    MoveKey,
    PinArtifact,
    RemoveArtifact,
    RemoveKey,
    RequestReplicas,
    RequestVerification,
    RetryOperation,
    UncordonNode,
    UnpinArtifact,
)
from tensorcast.schema.errors import Corrupt, Timeout, Unavailable
from tensorcast.schema.ids import (
    ArtifactId,
    EngineId,
    EventId,
    Key,
    LeaseId,
    NodeId,
    OperationId,
    ReplicaId,
    Tier,
    is_artifact_id,
    parse_key,
    parse_node,
)

if TYPE_CHECKING:
    from nats.aio.client import Client as Nats

T = TypeVar("T")

REQUEST_S = 10.0
ANSWER_SLACK_S = 2.0
ABSENT_S = 0.3
WAIT_S = 5.0
"""A waiting request is short, so that whoever waits soon learns that nobody listens any more."""
RESTART_POLL_S = 0.1
_NOBODY = Access()


class ControlPlane(
    EngineVerbs,
    EngineBlockVerbs,
    SignalVerbs,
    PlanVerbs,
    BlockVerbs,
    AuditVerbs,
    PastVerbs,
    StoreVerbs,
    AccessVerbs,
    PolicyVerbs,
):
    """Requests to the control plane of one cluster. `what` is a key, an id or the beginning of an
    id. All methods raise Unavailable when the control plane cannot be reached, Timeout when it does
    not answer in time, and the error that it answers."""

    def __init__(
        self,
        url: str,
        cluster: str,
        actor: str,
        position: Position,
        *,
        timeout_s: float = REQUEST_S,
        access: Access = _NOBODY,
    ) -> None:
        self._url = url
        self._access = access
        self._refusals = Refusals()
        self._patience = Patience(f"the control plane of cluster {cluster}")
        self._key_changed_at = 0
        self.cluster = cluster
        self.actor = actor
        self.position = position
        self._timeout_s = timeout_s
        self._nats: Nats | None = None
        self._left_behind: list[Nats | None] = []
        self._connecting = asyncio.Lock()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.user = access.user

    # ---- asking ------------------------------------------------------------------------------

    async def ask(
        self, verb: str, request: msgspec.Struct, answer: type[T], *, timeout: float | None = None
    ) -> T:
        """A question and its answer. A control plane that is there and does not answer (it may have
        died with the question) is asked a second time, when half of `timeout` is over. Not for
        `execute`: nobody knows whether it was carried out."""
        limit_s = self._timeout_s if timeout is None else timeout
        clock = asyncio.get_running_loop().time
        deadline = clock() + limit_s
        try:
            return await self.ask_once(verb, request, answer, timeout=limit_s / 2)
        except Timeout:
            pass
        while True:
            try:
                return await self.ask_once(verb, request, answer, timeout=deadline - clock())
            except Unavailable:  # it is just being started again
                if clock() + RESTART_POLL_S >= deadline:
                    raise
            except Timeout as error:
                raise _unanswered(verb, limit_s) from error
            await asyncio.sleep(RESTART_POLL_S)

    async def ask_once(
        self, verb: str, request: msgspec.Struct, answer: type[T], *, timeout: float
    ) -> T:
        """One request and its answer. What this client wrote before is in it."""
        from nats.errors import Error, NoRespondersError
        from nats.errors import TimeoutError as NatsTimeoutError

        payload = encode_request(await self.position.include(request))
        nats = await self.connect()
        try:
            # So long it may wait itself; who allows much time for work wonders later.
            asked_s = max(float(getattr(request, "timeout_s", 0.0)), timeout / 10)
            reply = await self._patience.wait(
                self._request(nats, verb, payload, max(0.0, timeout)),
                min(asked_s + SILENCE_S, max(SILENCE_S, timeout - ABSENT_S)),
            )
            return parse_reply(reply, answer)
        except NoRespondersError as error:
            raise Unavailable("The control plane is not running.", hint=HINT) from error
        except (NatsTimeoutError, TimeoutError) as error:
            raise _unanswered(verb, timeout) from error
        except (Error, OSError) as error:
            raise Unavailable(f"The connection to NATS broke: {error}.", hint=HINT) from error
        except msgspec.MsgspecError as error:
            raise Corrupt(
                f"The control plane's answer to {verb!r} cannot be read: {error}.",
                hint="Client and control plane may be of different releases.",
            ) from error

    async def _request(self, nats: Nats, verb: str, payload: bytes, timeout_s: float) -> bytes:
        """The bytes of an answer. Where nobody listens nothing was carried out: it is tried once
        more, for a control plane that is just connecting anew."""
        from nats.errors import NoRespondersError

        user = self._access.user
        subject = (
            subjects.user_subject(self.cluster, user, verb)
            if user
            else subjects.api_subject(self.cluster, verb)
        )

        async def request() -> bytes:
            return (await nats.request(subject, payload, timeout=timeout_s)).data

        try:
            return await self._refusals.answer(request(), subject)
        except NoRespondersError:
            await asyncio.sleep(ABSENT_S)
            return await self._refusals.answer(request(), subject)

    async def execute(self, command: Command, *further: Command, force: bool = False) -> Executed:
        """Has commands decided and their events appended, all of them or none. Later reads of this
        client include them."""
        request = Execute(command=command, actor=self.actor, force=force, further=further)
        done = await self.ask_once("execute", request, Executed, timeout=self._timeout_s)
        self.position.advance(done.seq)
        return done

    # ---- artifacts ---------------------------------------------------------------------------

    async def artifacts(
        self, *, node: str | None = None, status: str | None = None, limit: int = LIST_MAX
    ) -> tuple[ArtifactInfo, ...]:
        """The artifacts, newest first; those with a replica on `node`, or of one state."""
        request = self._browse(node=node, status=status, limit=limit)
        return await self.ask("artifact.list", request, tuple[ArtifactInfo, ...])

    async def artifact(self, what: What) -> ArtifactInfo:
        """One artifact with its keys and replicas. Raises NotFound."""
        return await self.ask("artifact.show", self._show(what), ArtifactInfo)

    async def tensors(self, what: What) -> tuple[TensorInfo, ...]:
        """The tensors of an artifact in the order of its bytes. Raises NotFound."""
        return await self.ask("artifact.tensors", self._show(what), tuple[TensorInfo, ...])

    async def history(
        self, what: What, *, limit: int = LIST_MAX, newest: bool = False
    ) -> tuple[EventInfo, ...]:
        """Every event about an artifact, its replicas, operations, leases and keys. Raises
        NotFound."""
        query = AuditQuery(what=name_of(what), limit=limit, newest=newest)
        return await self._pages("artifact.history", query)

    async def pin(self, what: What) -> Executed:
        """Keeps all replicas of the artifact from eviction; safe to repeat."""
        return await self.execute(PinArtifact(artifact=await self.artifact_id(what)))

    async def unpin(self, what: What) -> Executed:
        """Undoes `pin`; safe to repeat."""
        return await self.execute(UnpinArtifact(artifact=await self.artifact_id(what)))

    async def remove_artifact(self, what: What, *, force: bool = False) -> Executed:
        """Removes the artifact; its replicas are evicted. Raises Rejected while it is pinned, or
        leased or named by a key and not `force`."""
        command = RemoveArtifact(artifact=await self.artifact_id(what))
        return await self.execute(command, force=force)

    async def artifact_id(self, what: What) -> ArtifactId:
        """The full id of an artifact. Raises NotFound."""
        return (await self.artifact(what)).id

    async def expected(self, what: What | None) -> ArtifactId | None:
        """What a key is expected to point to, as its full id, which is not looked up. Raises
        NotFound."""
        if what is None:
            return None
        name = name_of(what)
        return ArtifactId(name) if is_artifact_id(name) else await self.artifact_id(name)

    # ---- keys --------------------------------------------------------------------------------

    async def keys(self, *, limit: int = LIST_MAX) -> tuple[KeyInfo, ...]:
        """The keys, the last moved first."""
        return await self.ask("key.list", self._browse(limit=limit), tuple[KeyInfo, ...])

    async def key(self, key: str) -> KeyInfo:
        """One key with its history. Raises NotFound."""
        return await self.ask("key.show", self._show(key), KeyInfo)

    async def move_key(self, key: str, artifact: What, *, expect: What | None = None) -> Executed:
        """Compare-and-set: points `key` to `artifact` if it points to `expect` now (None: if it
        does not exist). Raises Conflict."""
        command = MoveKey(
            key=parse_key(key),
            artifact=await self.artifact_id(artifact),
            expect=await self.expected(expect),
        )
        return await self.execute(command)

    async def remove_key(self, key: str, *, expect: What | None = None) -> Executed:
        """Removes the key (if it points to `expect`, when given). Raises NotFound, Conflict."""
        command = RemoveKey(key=Key(key), expect=await self.expected(expect))
        return await self.execute(command)

    # ---- replicas and operations ---------------------------------------------------------------

    async def request_replicas(
        self, artifact: ArtifactId, nodes: Sequence[str], tier: Tier = Tier.DRAM
    ) -> Executed:
        """Asks for replicas on nodes; the first of `events` is the id of the request."""
        command = RequestReplicas(
            artifact=artifact, nodes=tuple(parse_node(node) for node in nodes), tier=tier
        )
        return await self.execute(command)

    async def request_verification(
        self, artifact: ArtifactId, replicas: Sequence[ReplicaId]
    ) -> Executed:
        """Asks for the bytes of replicas to be checked against their digests."""
        return await self.execute(RequestVerification(artifact=artifact, replicas=tuple(replicas)))

    async def wait_replicas(
        self,
        artifact: ArtifactId,
        nodes: Sequence[NodeId],
        tier: Tier,
        request: EventId,
        *,
        timeout: float = WAIT_S,
    ) -> ReplicasProgress:
        """How far the replicas of a request are, when that is settled or after `timeout` (at most
        5 s)."""
        timeout_s = min(timeout, WAIT_S)
        query = WaitReplicas(
            artifact=artifact, nodes=tuple(nodes), tier=tier, request=request, timeout_s=timeout_s
        )
        return await self.ask_once(
            "replicas.wait", query, ReplicasProgress, timeout=timeout_s + ANSWER_SLACK_S
        )

    async def operations(
        self,
        *,
        status: str | None = None,
        node: str | None = None,
        artifact: str | None = None,
        limit: int = LIST_MAX,
    ) -> tuple[OperationInfo, ...]:
        """The operations, newest first; of one status, node or artifact (key or id)."""
        request = self._browse(status=status, node=node, artifact=artifact, limit=limit)
        return await self.ask("operation.list", request, tuple[OperationInfo, ...])

    async def operation(self, what: str) -> OperationInfo:
        """One operation by its id. Raises NotFound."""
        return await self.ask("operation.show", self._show(what), OperationInfo)

    async def wait_operation(self, operation: str, *, timeout: float = WAIT_S) -> OperationInfo:
        """The operation when it has ended, or as it is after `timeout` (at most 5 s)."""
        timeout_s = min(timeout, WAIT_S)
        query = WaitOperation(operation=OperationId(operation), timeout_s=timeout_s)
        return await self.ask_once(
            "operation.wait", query, OperationInfo, timeout=timeout_s + ANSWER_SLACK_S
        )

    async def cancel(self, operation: str, *, reason: str = "asked by a user") -> Executed:
        """Cancels an operation that has not ended. Raises NotFound, Rejected."""
        command = CancelOperation(operation=await self._operation_id(operation), reason=reason)
        return await self.execute(command)

    async def retry(self, operation: str) -> Executed:
        """Issues a failed or cancelled operation again. Raises NotFound, Rejected."""
        return await self.execute(RetryOperation(operation=await self._operation_id(operation)))

    # ---- nodes -------------------------------------------------------------------------------

    async def nodes(self) -> tuple[NodeInfo, ...]:
        """All nodes that ever joined."""
        return await self.ask("node.list", self._browse(), tuple[NodeInfo, ...])

    async def node(self, node: str) -> NodeInfo:
        """One node. Raises NotFound."""
        return await self.ask("node.show", self._show(node), NodeInfo)

    async def cordon(self, node: str) -> Executed:
        """No new replicas are placed on the node; safe to repeat."""
        return await self.execute(CordonNode(node=parse_node(node)))

    async def uncordon(self, node: str) -> Executed:
        """Undoes `cordon` and `drain`; safe to repeat."""
        return await self.execute(UncordonNode(node=parse_node(node)))

    async def drain(self, node: str) -> Executed:
        """Asks to move the node's replicas elsewhere, and cordons it."""
        return await self.execute(DrainNode(node=parse_node(node)))

    # ---- the record --------------------------------------------------------------------------

    async def audit(self, query: AuditQuery) -> tuple[EventInfo, ...]:
        """The events that match, in the order of the log; asked page by page up to `query.limit`
        (with `newest`: the last ones)."""
        return await self._pages("audit.log", query)

    async def audit_page(self, query: AuditQuery) -> tuple[EventInfo, ...]:
        """The next events that match, as many as one answer carries."""
        query = msgspec.structs.replace(query, after=max(query.after, self.position.seq))
        return await self.ask("audit.log", query, tuple[EventInfo, ...])

    async def replay(self, query: ReplayQuery) -> ReplayInfo:
        """The state as it was at a position or time."""
        return await self.ask("replay", query, ReplayInfo, timeout=12 * self._timeout_s)

    async def status(self, *, timeout: float | None = None) -> ClusterStatus:
        """Positions of the log and of its readers, the nodes, and problems in words."""
        return await self.ask("status", Ask(), ClusterStatus, timeout=timeout)

    # ---- leases and life -----------------------------------------------------------------------

    async def renew(self, lease: LeaseId) -> None:
        """Says that a lease is still wanted. Not acknowledged: a lost one is made up by the
        next."""
        nats = await self.connect()
        await nats.publish(subjects.renewal(self.cluster, lease), b"")

    async def pulse(self, engine: EngineId, payload: bytes) -> None:
        """Says that an engine is alive. Not acknowledged either."""
        nats = await self.connect()
        await nats.publish(subjects.presence(self.cluster, engine), payload)

    async def aclose(self) -> None:
        """Gives up the connection. Safe to repeat."""
        nats, self._nats = self._nats, None
        if nats is not None:
            await nats.close()

    def forget(self) -> None:
        """In a forked child: leaves the connection to the parent; the next request makes one."""
        self._left_behind.append(self._nats)
        self._nats = None
        self._connecting = asyncio.Lock()

    async def _pages(self, verb: str, query: AuditQuery) -> tuple[EventInfo, ...]:
        found: list[EventInfo] = []
        query = msgspec.structs.replace(query, after=max(query.after, self.position.seq))
        while len(found) < query.limit:
            size = min(LIST_MAX, query.limit - len(found))
            since = found[-1].seq if found else query.since
            page = await self.ask(
                verb,
                msgspec.structs.replace(query, limit=size, since=since),
                tuple[EventInfo, ...],
            )
            found.extend(page)
            if not page or query.newest:  # a page can be short because its events are large
                break
        return tuple(found)

    async def _operation_id(self, what: str) -> OperationId:
        return (await self.operation(what)).id

    def _show(self, what: What) -> Show:
        return Show(what=name_of(what), after=self.position.seq)

    def _browse(
        self,
        *,
        limit: int = LIST_MAX,
        status: str | None = None,
        node: str | None = None,
        artifact: str | None = None,
    ) -> Browse:
        return Browse(
            limit=limit,
            after=self.position.seq,
            status=status,
            node=parse_node(node) if node else None,
            artifact=artifact,
        )

    async def _make(self) -> Nats:
        return await connect_nats(self._url, self._access, self._refusals)

    async def connect(self) -> Nats:
        """The connection to NATS, made when there is none. Raises Unavailable."""
        async with self._connecting:
            self.loop = asyncio.get_running_loop()
            changed_at = key_changed_at(self._access)
            if self._nats is None or self._nats.is_closed or changed_at != self._key_changed_at:
                former, self._nats = self._nats, await self._make()
                self._key_changed_at = changed_at
                if former is not None and not former.is_closed:
                    # Requests that are under way on it get their answers.
                    asyncio.get_running_loop().call_later(REQUEST_S, close_soon, former)
            await wait_connected(self._nats)
            return self._nats


def _unanswered(verb: str, timeout_s: float) -> Timeout:
    return Timeout(f"The control plane did not answer {verb!r} within {timeout_s:g} s.", hint=HINT)
