"""Bytes on their way: each node has a bandwidth up and down, shared by all that use it.

A pull gets the least of its share of the receiver's downlink and of all its sources' shares of
their uplinks. That is a little less than max-min fairness gives, and a change costs only what the
pulls of the nodes that it touches cost. A node that is filling passes on what it has: who pulls
from it is done when it is done itself, and a chunk later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from tensorcast.controlplane.simulator.agenda import Agenda
from tensorcast.schema.ids import NodeId

Done = Callable[[bool], None]
"""Called at the end: whether all bytes came."""
RATE: Final = 1e9
"""Bytes a second of a node whose bandwidth nobody knows."""
CHUNK_S: Final = 0.01


class Flow:
    """One pull. Modified by the network alone."""

    def __init__(self, target: NodeId, sources: Sequence[NodeId], size: float, done: Done) -> None:
        self.target = target
        self.sources = tuple(sources)
        self.left = size
        self.rate = 0.0
        self.since_s = 0.0
        self.version = 0
        self.done = done


class Network:
    """All wires. `latency_s` comes before the first byte; `loss` is the chance that a pull breaks;
    nodes that are `cut` reach nobody."""

    def __init__(
        self, agenda: Agenda, random: Random, *, latency_s: float = 0.0005, loss: float = 0.0
    ) -> None:
        self.cut: set[NodeId] = set()
        self.loss = loss
        self.moved_bytes = 0
        self._agenda = agenda
        self._random = random
        self._latency_s = latency_s
        self._rates: dict[NodeId, float] = {}
        self._flows: dict[NodeId, dict[Flow, None]] = {}
        self._pulls: dict[NodeId, int] = {}
        self._feeds: dict[NodeId, int] = {}
        self._waiting: dict[NodeId, list[Flow]] = {}

    def set_rate(self, node: NodeId, bytes_per_s: float) -> None:
        """The bandwidth of a node, each way; 0: not known."""
        self._rates[node] = bytes_per_s or RATE

    def pull(self, target: NodeId, sources: Sequence[NodeId], size: int, done: Done) -> None:
        """Brings bytes to a node; `done` is called when they are there, or will not come."""
        usable = [source for source in sources if self.reaches(source, target)]
        flow = Flow(target, usable, float(size), done)
        if not usable or self._random.random() < self.loss:
            self._agenda.after(self._latency_s, lambda: done(False))
            return
        self.moved_bytes += size
        self._count(flow, 1)
        self._agenda.after(self._latency_s, lambda: self._settle(flow.target, *flow.sources))

    def reaches(self, source: NodeId, target: NodeId) -> bool:
        """Whether bytes can go between two nodes."""
        return source not in self.cut and target not in self.cut and source != target

    def drop(self, node: NodeId) -> None:
        """Breaks all pulls from and to a node."""
        for flow in list(self._flows.get(node, ())):
            self._end(flow, False)

    def is_pulling(self, node: NodeId) -> bool:
        """Whether bytes are on their way to a node."""
        return self._pulls.get(node, 0) > 0

    def _count(self, flow: Flow, change: int) -> None:
        self._pulls[flow.target] = self._pulls.get(flow.target, 0) + change
        for node in flow.sources:
            self._feeds[node] = self._feeds.get(node, 0) + change
        for node in (flow.target, *flow.sources):
            if change > 0:
                self._flows.setdefault(node, {})[flow] = None
            else:
                self._flows[node].pop(flow, None)

    def _settle(self, *nodes: NodeId) -> None:
        """New rates for all pulls of these nodes."""
        touched = {flow: None for node in nodes for flow in self._flows.get(node, ())}
        now_s = self._agenda.now_s
        for flow in touched:
            flow.left = max(0.0, flow.left - flow.rate * (now_s - flow.since_s))
            flow.since_s = now_s
            flow.rate = self._share(flow)
            flow.version += 1
            self._agenda.after(flow.left / flow.rate, self._arrival(flow, flow.version))

    def _share(self, flow: Flow) -> float:
        down = self._rates.get(flow.target, RATE) / self._pulls[flow.target]
        up = sum(self._rates.get(node, RATE) / self._feeds[node] for node in flow.sources)
        return min(down, up)

    def _arrival(self, flow: Flow, version: int) -> Callable[[], None]:
        def arrive() -> None:
            if flow.version != version or flow not in self._flows.get(flow.target, ()):
                return
            filling = [node for node in flow.sources if self.is_pulling(node)]
            if len(filling) == len(flow.sources):
                flow.left = 0.0
                self._waiting.setdefault(filling[0], []).append(flow)
                return
            self._end(flow, True)

        return arrive

    def _end(self, flow: Flow, is_whole: bool) -> None:
        self._count(flow, -1)
        flow.version += 1
        followers = self._waiting.pop(flow.target, ())
        self._settle(flow.target, *flow.sources)
        flow.done(is_whole)
        for follower in followers:
            self._agenda.after(CHUNK_S, self._arrival(follower, follower.version))
