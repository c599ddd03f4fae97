"""Verb `status`: where everybody stands, and what is wrong, in words."""

from __future__ import annotations

from collections.abc import Iterator

from tensorcast.controlplane.services.api_answers import describe_nodes
from tensorcast.controlplane.services.api_desk import Desk
from tensorcast.controlplane.services.heartbeats import Heartbeats
from tensorcast.controlplane.services.scheduler import READER
from tensorcast.schema.aggregates.node import NodeStatus
from tensorcast.schema.api import Ask, ClusterStatus
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.errors import Timeout, Unavailable
from tensorcast.schema.ids import Seq

SILENT_S = 3.0
LAG_EVENTS = 5000
FULL_FRACTION = 0.95


async def show_status(desk: Desk, request: Ask) -> ClusterStatus:
    """Positions of the log, of Postgres and of the schedulers; the nodes; problems in words."""
    last = await desk.writer.last_seq()
    scheduled = await desk.cursors.load(READER)
    view = desk.follower.view
    problems: list[str] = []
    try:
        committed = await desk.history.committed_seq()
        problems.extend(_lag("The persister", last, committed))
    except (Unavailable, Timeout) as error:
        committed = Seq(0)
        problems.append(str(error))
    problems.extend(_lag("The scheduler", last, scheduled))
    problems.extend(find_problems(view, desk.heartbeats))
    return ClusterStatus(
        cluster=desk.cluster,
        last_seq=last,
        committed_seq=committed,
        scheduled_seq=scheduled,
        nodes=describe_nodes(view),
        problems=tuple(problems),
    )


def _lag(who: str, last: Seq, seen: Seq) -> Iterator[str]:
    if last - seen > LAG_EVENTS:
        yield f"{who} is {last - seen} events behind."


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
        for tier, info in heard.heartbeat.tiers.items():
            if info.capacity and info.used > FULL_FRACTION * info.capacity:
                yield f"The {tier} of node {name} is {info.used / info.capacity:.0%} full."
    if view.skipped:
        yield f"{view.skipped} events of the log could not follow; `tcctl audit verify` says more."
