"""A fluid model of a broadcast: what the links let through, under the plans of the real policies.

Bandwidth is in chunks a second, each way. A node passes on whole chunks; whoever has what somebody
else lacks shares its uplink, and whoever gets from several its downlink, fairly (max-min). Nothing
else takes time, so what is measured is the plan. A node that dies takes its bytes along; who pulled
from it goes on from the holders at once, and gets the sources that the policies say with the next
step. Everything follows from the arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tensorcast.controlplane.core.policies.replicate import Replicate
from tensorcast.controlplane.core.policies.reroute import Reroute
from tensorcast.schema.aggregates.operation import OPEN, Operation
from tensorcast.schema.events import NodeLost, OperationRerouted
from tensorcast.schema.ids import ArtifactId, Epoch, NodeId
from worlds import World

STEP_S = 0.25
STEPS_MAX = 20_000
Flow = tuple[NodeId, NodeId]


class Broadcast:
    """An artifact of `chunks` chunks in a world of nodes; `have` counts the chunks of each node."""

    def __init__(self, chunks: int) -> None:
        self.world = World()
        self.chunks = chunks
        self.have: dict[NodeId, float] = {}
        self.bandwidth: dict[NodeId, float] = {}
        self.done_s: dict[NodeId, float] = {}
        self.moved: dict[Flow, float] = {}
        self.at_s = 0.0
        self._artifact = ArtifactId("")
        self._issued = 0

    def add(self, name: str, bandwidth: float, rack: str = "") -> NodeId:
        """A node joins."""
        labels = {"rack": rack} if rack else {}
        self.world.node(name, labels=labels, bandwidth=int(bandwidth * 1e6))
        self.bandwidth[NodeId(name)] = bandwidth
        return NodeId(name)

    def hold(self, *names: NodeId) -> None:
        """These have all of it. The nodes must be there before."""
        self._artifact = self.world.artifact("a", *names, chunks=self.chunks)
        self.have |= dict.fromkeys(names, float(self.chunks))

    def request(self, *names: NodeId) -> None:
        """Replicas are asked for, and the policy answers."""
        self.world.request(self._artifact, *names)
        for command in Replicate().react(self.world.view, self.world.last):
            self._issued += 1
            operation = self.world.issue(f"op-{self._issued}", command.node, command.work)
            self.world.start(operation)
            self.world.filling(self._artifact, command.node)
            self.have[command.node] = 0.0

    def kill(self, name: NodeId) -> None:
        """A node is gone, and the log says so."""
        del self.have[name]
        self.world.then(NodeLost(node=name, epoch=Epoch(1), silent_s=5.0))
        for command in Reroute().react(self.world.view, self.world.last):
            event = OperationRerouted(operation=command.operation, sources=command.sources)
            self.world.then(event)

    def run(self, until: Callable[[], bool]) -> float:
        """Lets time pass until something is so; the moment when it is."""
        for _ in range(STEPS_MAX):
            if until():
                return self.at_s
            self._step()
        raise AssertionError(f"it never ends: {self.have}")

    def wait(self, seconds: float) -> None:
        """Lets so much time pass."""
        until_s = self.at_s + seconds
        self.run(lambda: self.at_s >= until_s)

    def is_over(self) -> bool:
        """Whether everybody who lives has everything."""
        return all(have >= self.chunks for have in self.have.values())

    def _step(self) -> None:
        rates = share(self._flows(), self.bandwidth)
        self.at_s += STEP_S
        for (source, target), rate in rates.items():
            more = min(rate * STEP_S, self._offer(source) - self.have[target])
            if more > 0:
                self.have[target] += more
                self.moved[source, target] = self.moved.get((source, target), 0.0) + more
        for name, have in self.have.items():
            if have >= self.chunks - 1e-9:
                self.have[name] = float(self.chunks)
                self._finish(name)

    def _finish(self, name: NodeId) -> None:
        pull = self._pull(name)
        if name not in self.done_s and pull is not None:
            self.done_s[name] = self.at_s
            self.world.ready(self._artifact, name)
            self.world.succeed(pull.id)

    def _flows(self) -> Iterator[Flow]:
        for target in self.have:
            pull = self._pull(target)
            if pull is None:
                continue
            planned = [s for s in pull.work.sources if s in self.have]
            for source in planned or self._holders():
                if self._offer(source) - self.have[target] > 1e-9:
                    yield source, target

    def _holders(self) -> list[NodeId]:
        return [name for name, have in self.have.items() if have >= self.chunks]

    def _offer(self, source: NodeId) -> float:
        have = self.have.get(source, 0.0)
        return have if have >= self.chunks else float(int(have + 1e-9))

    def _pull(self, node: NodeId) -> Operation | None:
        found = self.world.view.operations.values()
        return next((o for o in found if o.node == node and o.status in OPEN), None)


def share(flows: Iterator[Flow], bandwidth: dict[NodeId, float]) -> dict[Flow, float]:
    """The max-min fair rates of flows over uplinks and downlinks (progressive filling: Bertsekas
    and Gallager, Data Networks, 6.5.2)."""
    rates: dict[Flow, float] = {}
    open_flows = set(flows)
    up, down = dict(bandwidth), dict(bandwidth)
    while open_flows:
        sharing_up: dict[NodeId, int] = {}
        sharing_down: dict[NodeId, int] = {}
        for source, target in open_flows:
            sharing_up[source] = sharing_up.get(source, 0) + 1
            sharing_down[target] = sharing_down.get(target, 0) + 1
        level = min(
            *(up[name] / count for name, count in sharing_up.items()),
            *(down[name] / count for name, count in sharing_down.items()),
        )
        full_up = {n for n, count in sharing_up.items() if up[n] / count <= level + 1e-12}
        full_down = {n for n, count in sharing_down.items() if down[n] / count <= level + 1e-12}
        for flow in sorted(open_flows):
            source, target = flow
            if source in full_up or target in full_down:
                rates[flow] = level
                up[source] -= level
                down[target] -= level
                open_flows.remove(flow)
    return rates


def least_s(chunks: int, holders: list[float], targets: list[float]) -> float:
    """No plan is faster: the slowest target's downlink, the holders' uplinks, and all uplinks
    together (Kumar and Ross, 2006)."""
    return max(
        chunks / min(targets),
        chunks / sum(holders),
        len(targets) * chunks / (sum(holders) + sum(targets)),
    )
