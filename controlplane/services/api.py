"""The API: one NATS request for each verb, answered by any of the control planes that run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from tensorcast.controlplane.core.admission import check_actor
from tensorcast.controlplane.services import (
    api_audit,
    api_blocks,
    api_engine_blocks,
    api_engines,
    api_history,
    api_live,
    api_past,
    api_plans,
    api_policies,
    api_rights,
    api_signals,
    api_store,
    api_waits,
    api_why,
)
from tensorcast.controlplane.services.api_commands import run_command
from tensorcast.controlplane.services.api_desk import Desk
from tensorcast.controlplane.services.api_status import show_status
from tensorcast.log.connection import Connection
from tensorcast.schema.access import actor_of
from tensorcast.schema.api import (
    Ask,
    AuditQuery,
    BlockQuery,
    BlockShow,
    Browse,
    Execute,
    ReplayQuery,
    Show,
    WaitOperation,
    WaitReplicas,
    WeightsQuery,
    reply_error,
    reply_ok,
)
from tensorcast.schema.api_audit import (
    ExtentQuery,
    HashQuery,
    HeadsQuery,
    ImportEvents,
    RowsQuery,
    VerifySpan,
)
from tensorcast.schema.api_engine_blocks import HoldersQuery, ReportBlocks, ViewQuery
from tensorcast.schema.api_past import DiffQuery, MomentQuery, WhyQuery
from tensorcast.schema.api_plans import TryPlan, WaitPlan
from tensorcast.schema.api_policies import ChangePolicy, PolicyQuery
from tensorcast.schema.api_signals import Emit, TopicsQuery
from tensorcast.schema.api_store import (
    ArchivesQuery,
    DeadQuery,
    JobsQuery,
    RetryDead,
    StartJob,
)
from tensorcast.schema.errors import (
    ErrorBody,
    InvalidArgument,
    OutOfCapacity,
    TensorCastError,
    to_body,
)
from tensorcast.schema.subjects import (
    api_queue,
    api_subject,
    parse_request_subject,
    user_subject,
)

REQUESTS_MAX = 512
"""Most requests under way at once; one more is told to come again."""
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Route:
    """How a verb is answered: what its request must be, and who answers it."""

    request: msgspec.json.Decoder[msgspec.Struct]
    answer: Callable[..., Awaitable[object]]


def _route(request: type[msgspec.Struct], answer: Callable[..., Awaitable[object]]) -> Route:
    return Route(msgspec.json.Decoder(request), answer)


ROUTES = {
    "execute": _route(Execute, run_command),
    "artifact.list": _route(Browse, api_live.list_artifacts),
    "artifact.show": _route(Show, api_live.show_artifact),
    "artifact.tensors": _route(Show, api_live.show_tensors),
    "artifact.history": _route(AuditQuery, api_history.artifact_history),
    "key.list": _route(Browse, api_live.list_keys),
    "key.show": _route(Show, api_history.show_key),
    "operation.list": _route(Browse, api_live.list_operations),
    "operation.show": _route(Show, api_live.show_operation),
    "operation.wait": _route(WaitOperation, api_waits.wait_operation),
    "replicas.wait": _route(WaitReplicas, api_waits.wait_replicas),
    "node.list": _route(Browse, api_live.list_nodes),
    "node.show": _route(Show, api_live.show_node),
    "engine.list": _route(Browse, api_engines.list_engines),
    "engine.show": _route(Show, api_engines.show_engine),
    "engine.weights": _route(WeightsQuery, api_engines.weights_of),
    "audit.log": _route(AuditQuery, api_history.audit_log),
    "audit.extent": _route(ExtentQuery, api_audit.show_extent),
    "audit.verify": _route(VerifySpan, api_audit.verify_span),
    "audit.hashes": _route(HashQuery, api_audit.show_hashes),
    "audit.heads": _route(HeadsQuery, api_audit.show_heads),
    "log.import": _route(ImportEvents, api_audit.import_events),
    "audit.rows": _route(RowsQuery, api_audit.show_rows),
    "audit.dead": _route(DeadQuery, api_store.list_dead),
    "audit.jobs": _route(JobsQuery, api_store.show_jobs),
    "audit.archives": _route(ArchivesQuery, api_store.show_archives),
    "store.start": _route(StartJob, api_store.start_job),
    "store.retry": _route(RetryDead, api_store.retry_dead),
    "blocks.stats": _route(Ask, api_blocks.block_stats),
    "blocks.spaces": _route(Ask, api_blocks.block_spaces),
    "blocks.show": _route(BlockShow, api_blocks.show_block),
    "blocks.events": _route(BlockQuery, api_blocks.block_events),
    "engine_blocks.report": _route(ReportBlocks, api_engine_blocks.report_blocks),
    "engine_blocks.views": _route(ViewQuery, api_engine_blocks.list_views),
    "engine_blocks.holders": _route(HoldersQuery, api_engine_blocks.find_holders),
    "signal.emit": _route(Emit, api_signals.emit_signal),
    "signal.topics": _route(TopicsQuery, api_signals.list_topics),
    "policy.list": _route(PolicyQuery, api_policies.list_policies),
    "policy.show": _route(PolicyQuery, api_policies.show_policy),
    "policy.change": _route(ChangePolicy, api_policies.change_policy),
    "plan.list": _route(Browse, api_plans.list_plans),
    "plan.show": _route(Show, api_plans.show_plan),
    "plan.wait": _route(WaitPlan, api_plans.wait_plan),
    "plan.check": _route(TryPlan, api_plans.check_request),
    "plan.explain": _route(TryPlan, api_plans.explain_plan),
    "audit.why": _route(WhyQuery, api_why.explain),
    "artifact.lineage": _route(Show, api_why.show_lineage),
    "moment": _route(MomentQuery, api_past.show_moment),
    "replay": _route(ReplayQuery, api_past.replay),
    "diff": _route(DiffQuery, api_past.diff),
    "status": _route(Ask, show_status),
    "access.list": _route(Browse, api_rights.list_access),
}


async def run_api(
    connection: Connection, desk: Desk, *, serving: Callable[[], None] = lambda: None
) -> None:
    """Answers requests for ever; calls `serving` once it listens. A request that makes no sense
    gets InvalidArgument, and none ends the service."""
    nats = connection.nats
    async with asyncio.TaskGroup() as tasks:
        under_way: set[asyncio.Task[None]] = set()

        async def on_request(message: Msg) -> None:
            if len(under_way) >= REQUESTS_MAX:
                busy = OutOfCapacity("The control plane is busy.", hint="Try again in a moment.")
                await _respond(message, reply_error(to_body(busy)))
                return
            task = tasks.create_task(_serve(nats, desk, message))
            under_way.add(task)
            task.add_done_callback(under_way.discard)

        listening = _Listening(nats, desk.cluster, on_request)
        await listening.pause(False)
        connection.pauses.append(listening.pause)
        serving()
        try:
            await asyncio.Event().wait()
        finally:
            connection.pauses.remove(listening.pause)
            if nats.is_connected:
                await listening.pause(True)


class _Listening:
    """The subscriptions to requests: of users whom NATS knows by their keys, and of others."""

    def __init__(
        self, nats: Client, cluster: str, on_request: Callable[[Msg], Awaitable[None]]
    ) -> None:
        self._nats = nats
        self._subjects = (api_subject(cluster, ">"), user_subject(cluster, "*", ">"))
        self._queue = api_queue(cluster)
        self._on_request = on_request
        self._open: list[Subscription] = []

    async def pause(self, is_paused: bool) -> None:
        """Stops to listen, or begins; another control plane gets the requests meanwhile, or whoever
        asks is told that none is there."""
        if not is_paused:
            for subject in self._subjects:
                self._open.append(
                    await self._nats.subscribe(subject, queue=self._queue, cb=self._on_request)
                )
        while is_paused and self._open:
            await self._open.pop().unsubscribe()
        await self._nats.flush()


async def _serve(nats: Client, desk: Desk, message: Msg) -> None:
    user, verb = parse_request_subject(desk.cluster, message.subject)
    reply = await answer(desk, verb, message.data, user=user)
    if len(reply) > nats.max_payload:
        error = OutOfCapacity(
            f"The answer has {len(reply)} bytes; the NATS server carries {nats.max_payload}.",
            hint="Ask for less, or raise max_payload in the server's configuration.",
        )
        reply = reply_error(to_body(error))
    await _respond(message, reply)


async def _respond(message: Msg, payload: bytes) -> None:
    if not message.reply:
        return
    try:
        await message.respond(payload)
    except NatsError as error:
        _logger.warning("an answer to %s could not be sent: %s", message.subject, error)


async def answer(desk: Desk, verb: str, payload: bytes, *, user: str = "") -> bytes:
    """The reply to one request, whatever it holds. `user` is who asks, when NATS knows it. Never
    raises but for cancellation."""
    try:
        route = ROUTES.get(verb)
        if route is None:
            raise InvalidArgument(
                f"The control plane knows no verb {verb!r}.", hint=f"Known: {', '.join(ROUTES)}."
            )
        request = identify(_parse(route, verb, payload), user)
        await api_rights.authorize(desk, verb, request, user)
        return reply_ok(api_rights.readable(desk, await route.answer(desk, request), user))
    except TensorCastError as error:
        return reply_error(to_body(error))
    except Exception:
        _logger.exception("request %r failed", verb)
        body = ErrorBody(
            code="error",
            message=f"The control plane failed at {verb!r}.",
            hint="Its log has the details.",
        )
        return reply_error(body)


def identify(request: msgspec.Struct, user: str) -> msgspec.Struct:
    """The request in the name of its user, whatever name it gives itself."""
    if not user or not isinstance(request, Execute | Emit | ReportBlocks | ChangePolicy):
        return request
    check_actor(request.actor)
    return msgspec.structs.replace(request, actor=actor_of(user, request.actor))


def _parse(route: Route, verb: str, payload: bytes) -> msgspec.Struct:
    try:
        return route.request.decode(payload)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidArgument(
            f"The request {verb!r} cannot be read: {error}.",
            hint="Client and control plane may be of different releases.",
        ) from error
