"""Questions to the control plane that take several steps: replicate, verify, wait for a key."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tensorcast.client.api import ControlPlane
from tensorcast.client.faults import failures_of
from tensorcast.client.handles import AsyncOperation, AsyncReplication, wait_until
from tensorcast.client.naming import What, name_of
from tensorcast.schema.api import ArtifactInfo, NodeInfo, OperationInfo
from tensorcast.schema.errors import InvalidArgument, NotFound, Timeout, Unavailable
from tensorcast.schema.ids import EventId, NodeId, parse_tier, replica_id

VERIFY_ISSUE_S = 30.0
POLL_S_MIN = 0.05
POLL_S_MAX = 1.0


async def replicate(
    api: ControlPlane, what: What, *, to: Sequence[str] | str, tier: str
) -> AsyncReplication:
    """As `AsyncClient.replicate`."""
    target = parse_tier(tier)
    info, known = await asyncio.gather(api.artifact(what), api.nodes())
    nodes = choose_nodes(to, known)
    done = await api.request_replicas(info.id, nodes, target)
    if not done.events:
        raise Unavailable("The control plane did not record the request.", artifact=info.id)
    return AsyncReplication(api, info.id, nodes, target, done.events[0])


def choose_nodes(to: Sequence[str] | str, known: Sequence[NodeInfo]) -> tuple[NodeId, ...]:
    """The nodes that are meant: names, or "all" for those that are up and take replicas. Raises
    NotFound for an unknown node, Unavailable for one that is down, InvalidArgument for none."""
    if not isinstance(to, str | Sequence):
        raise InvalidArgument(f"{to!r} names no nodes.", hint="Give names of nodes, or 'all'.")
    up = [info.node for info in known if info.state == "up"]
    if to in ("all", ["all"], ("all",)):
        chosen = tuple(info.node for info in known if info.state == "up" and not info.cordoned)
        if not chosen:
            raise Unavailable("No node is up.", hint="`tcctl node ls` shows them.")
        return chosen
    names = to.split(",") if isinstance(to, str) else list(to)
    by_name = {str(info.node): info for info in known}
    if not names:
        raise InvalidArgument("No node is named.", hint="Name one or more nodes, or 'all'.")
    for name in names:
        if name not in by_name:
            raise NotFound(
                f"There is no node {name!r}.",
                hint=f"Nodes that are up: {', '.join(up) or 'none'}.",
                node=name,
            )
        if by_name[name].state != "up":
            raise Unavailable(
                f"Node {name} is {by_name[name].state}.",
                hint=f"Nodes that are up: {', '.join(up) or 'none'}.",
                node=name,
            )
    return tuple(by_name[name].node for name in dict.fromkeys(names))


async def verify(
    api: ControlPlane, what: What, *, node: str | None, timeout: float | None, check: bool
) -> tuple[AsyncOperation, ...]:
    """As `AsyncClient.verify`."""
    info = await api.artifact(what)
    replicas = [
        replica_id(info.id, replica.node, replica.tier)
        for replica in info.replicas
        if replica.state == "ready" and node in (None, replica.node)
    ]
    if not replicas:
        where = f" on node {node}" if node else ""
        raise NotFound(
            f"Artifact {info.id} has no replica that is ready{where}.",
            hint="`tcctl artifact where` shows its replicas.",
            artifact=info.id,
            node=node,
        )
    done = await api.request_verification(info.id, replicas)
    issued = await _issued_for(api, info, done.events[0], len(replicas))
    operations = tuple(AsyncOperation(api, found) for found in issued)
    for operation in operations:
        await operation.settle(timeout)
    failed = [operation.info for operation in operations if operation.status != "succeeded"]
    if failed and check:
        raise failures_of(failed)
    return operations


async def _issued_for(
    api: ControlPlane, info: ArtifactInfo, request: EventId, count: int
) -> tuple[OperationInfo, ...]:
    """The operations that answer a request, once all `count` of them are issued."""

    async def ask(_: float) -> tuple[OperationInfo, ...]:
        known = await api.operations(artifact=info.id)
        found = tuple(operation for operation in known if operation.cause == request)
        if len(found) < count:
            await asyncio.sleep(POLL_S_MIN)
        return found

    return await wait_until(
        ask,
        lambda found: len(found) >= count,
        VERIFY_ISSUE_S,
        None,
        Timeout(
            f"No scheduler has answered the request in {VERIFY_ISSUE_S:g} s.",
            hint="`tcctl status` shows whether one runs.",
            artifact=info.id,
        ),
    )


async def wait_for_artifact(api: ControlPlane, what: What, timeout: float) -> None:
    """As `AsyncClient.wait`."""
    pause_s = POLL_S_MIN

    async def ask(timeout_s: float) -> ArtifactInfo | None:
        nonlocal pause_s
        try:
            info = await api.artifact(what)
        except NotFound:
            info = None
        if not is_usable(info):
            await asyncio.sleep(min(pause_s, timeout_s))
            pause_s = min(POLL_S_MAX, pause_s * 1.5)
        return info

    name = name_of(what)
    late = Timeout(f"{name!r} is not ready after {timeout:g} s.", hint="Was it put?", artifact=name)
    await wait_until(ask, is_usable, timeout, None, late)


def is_usable(info: ArtifactInfo | None) -> bool:
    """Whether it is there with a replica that is ready."""
    return info is not None and any(replica.state == "ready" for replica in info.replicas)
