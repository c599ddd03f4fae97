"""Verb `status`: where everybody stands, and what is wrong, in words."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from typing import TypeVar

from tensorcast.controlplane.core.catalog import Catalog
from tensorcast.controlplane.core.view import replicas_of
from tensorcast.controlplane.services.api_answers import describe_nodes
from tensorcast.controlplane.services.api_desk import Desk
from tensorcast.controlplane.services.api_live import as_heard
from tensorcast.controlplane.services.continuity import REMEDY
from tensorcast.controlplane.services.heartbeats import Heartbeats
from tensorcast.controlplane.services.scheduler import READER
from tensorcast.controlplane.store.dead_queries import Counts
from tensorcast.schema.aggregates.artifact import ArtifactStatus
from tensorcast.schema.aggregates.node import NodeStatus
from tensorcast.schema.aggregates.policy import PolicyStatus
from tensorcast.schema.aggregates.replica import ReplicaStatus
from tensorcast.schema.api import Ask, ClusterStatus
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.errors import TensorCastError
from tensorcast.schema.ids import ArtifactId, Seq
from tensorcast.schema.wording import tell_count

SILENT_S = 3.0
LAG_EVENTS = 5000
FULL_FRACTION = 0.95
NAMED_MAX = 3
"""So many artifacts are named in one sentence."""

T = TypeVar("T")


async def show_status(desk: Desk, request: Ask) -> ClusterStatus:
    """Positions of the log, of Postgres and of the schedulers; the nodes; problems in words. It is
    answered whatever is away: what cannot be asked is a problem, and its position 0."""
    view = desk.follower.view
    problems: list[str] = []
    _, committed, scheduled, parked = await asyncio.gather(
        _answer_of(desk.cursors.check_room(), problems),
        _answer_of(desk.history.committed_seq(), problems),
        _answer_of(desk.cursors.load(READER), problems),
        _answer_of(desk.history.count_letters(), problems),
    )
    if desk.writer.trouble is not None:
        problems.append(f"The log takes no events: {desk.writer.trouble}")
    if desk.progress.problem is not None:
        problems.append(f"The persister does not copy: {desk.progress.problem}")
    if desk.progress.snapshots is not None:
        problems.append(
            "No snapshot of the history can be made, so the past opens slowly"
            f" ({desk.progress.snapshots}). The log of the control plane has the details."
        )
    if desk.block_progress.problem is not None:
        problems.append(f"KV events are not copied: {desk.block_progress.problem}")
    last = await _answer_of(desk.writer.last_seq(), problems)
    if last is not None:
        problems.extend(_lag("The persister", last, committed))
        problems.extend(_lag("The scheduler", last, scheduled))
    problems.extend(find_problems(view, desk.heartbeats))
    problems.extend(find_idle_policies(view, desk.catalog))
    problems.extend(find_parked(view, parked or {}))
    problems.extend(find_losses(view))
    return ClusterStatus(
        cluster=desk.cluster,
        last_seq=view.at if last is None else last,
        committed_seq=committed or Seq(0),
        scheduled_seq=scheduled or Seq(0),
        nodes=tuple(as_heard(desk, node) for node in describe_nodes(view)),
        problems=tuple(dict.fromkeys(problems)),
    )


async def _answer_of(question: Awaitable[T], problems: list[str]) -> T | None:
    """The answer; None when there is none. Modifies `problems`."""
    try:
        return await question
    except TensorCastError as error:
        problems.append(str(error))
        return None


def _lag(who: str, last: Seq, seen: Seq | None) -> Iterator[str]:
    if seen is None:
        return
    if seen > last:
        yield f"{who} has seen event {seen}, but the log ends at {last}. {REMEDY}"
    elif last - seen > LAG_EVENTS:
        yield f"{who} is {tell_count(last - seen, 'event')} behind."


def find_losses(view: ClusterView) -> Iterator[str]:
    """The artifacts of which no node has a complete replica, not even one that is away."""
    lost = [
        artifact
        for artifact, found in view.artifacts.items()
        if found.status is ArtifactStatus.SEALED and not _is_somewhere(view, artifact)
    ]
    if lost:
        names = ", ".join(_name(view, artifact) for artifact in sorted(lost)[:NAMED_MAX])
        more = ", ..." if len(lost) > NAMED_MAX else ""
        whose = f"{tell_count(len(lost), 'artifact')} {'is' if len(lost) == 1 else 'are'}"
        yield f"{whose} complete nowhere: {names}{more}. Put the bytes again, or remove it."


def _is_somewhere(view: ClusterView, artifact: ArtifactId) -> bool:
    whole = (ReplicaStatus.READY, ReplicaStatus.EVICTING)
    return any(replica.status in whole for replica in replicas_of(view, artifact))


def _name(view: ClusterView, artifact: ArtifactId) -> str:
    keys = sorted(view.keys_by_artifact.get(artifact, ()))
    return f"{artifact} ({keys[0]})" if keys else artifact


def find_problems(view: ClusterView, heartbeats: Heartbeats) -> Iterator[str]:
    """What an operator should look at, one sentence each."""
    for name in sorted(view.nodes):
        node = view.nodes[name]
        if node.status is NodeStatus.LOST:
            yield f"Node {name} is lost: its mover has fallen silent."
            continue
        heard = heartbeats.nodes.get(name)
        if node.status is not NodeStatus.UP or heard is None:
            continue
        silent_s = heartbeats.clock() - heard.at_s
        if silent_s > SILENT_S:
            yield f"Node {name} has been silent for {silent_s:.0f} s."
        if heard.heartbeat.trouble:
            yield heard.heartbeat.trouble
        for tier, info in heard.heartbeat.tiers.items():
            if info.capacity and info.used > FULL_FRACTION * info.capacity:
                yield f"The {tier} of node {name} is {info.used / info.capacity:.0%} full."
    for policy in view.policies.values():
        if policy.status is PolicyStatus.STOPPED:
            yield (
                f"Policy {policy.id} was stopped ({policy.reason}: {policy.detail}); once that is"
                f" mended: tcctl policy enable {policy.id}."
            )


def find_idle_policies(view: ClusterView, catalog: Catalog) -> Iterator[str]:
    """The policies that somebody has enabled and that do not run here, one sentence each."""
    running = {policy.name for policy in catalog.running(view)}
    for name, policy in sorted(view.policies.items()):
        if policy.status is not PolicyStatus.ENABLED or name in running:
            continue
        if name not in catalog.kinds:
            yield (
                f"Policy {name} is enabled, but the control plane does not have its code: name its"
                " file in TENSORCAST_POLICIES and start the control plane again, or"
                f" `tcctl policy disable {name}`."
            )
        else:
            yield (
                f"Policy {name} is enabled, but does not run: its code does not take the"
                f" parameters that were set. `tcctl policy set {name} NAME=null` takes one back."
            )


def find_parked(view: ClusterView, counts: Counts) -> Iterator[str]:
    """What stands still because an event of it could not be taken, one sentence for each cause."""
    mend = "`tcctl audit dead ls` lists all of them."
    held = sorted(view.parked.values(), key=lambda one: one.first)
    for one in held[:NAMED_MAX]:
        waiting = f" and {one.events - 1} after it" if one.events > 1 else ""
        yield (
            f"Event {one.first}{waiting} cannot be taken: {one.id} stands still"
            f" ({one.reason.rstrip('.')}). {mend}"
        )
    if len(held) > NAMED_MAX:
        yield f"{len(held) - NAMED_MAX} more things stand still. {mend}"
    if refused := counts.get(("log", "postgres"), 0):
        found = tell_count(refused, "event")
        yield f"Postgres refuses what follows from {found} of the log. {mend}"
    if kv := sum(count for (log, _), count in counts.items() if log == "kv"):
        yield f"{tell_count(kv, 'event')} of KV blocks cannot be taken. {mend}"
