"""Clusters and their users, for measurements of growth: many nodes, many artifacts, an hour of
puts, gets, requests, crashes and cuts, all by one seed."""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from tensorcast.controlplane.core.view import free_bytes
from tensorcast.controlplane.simulator.agenda import Action
from tensorcast.controlplane.simulator.machines import Fleet, Machine
from tensorcast.controlplane.simulator.measures import Measures, Meter
from tensorcast.controlplane.simulator.world import World
from tensorcast.schema.commands import (
    CompleteReplica,
    JoinNode,
    MoveKey,
    RequestReplicas,
    SealArtifact,
)
from tensorcast.schema.ids import ArtifactId, Epoch, Key, NodeId, Tier, replica_id
from tensorcast.schema.tensors import Manifest, lay_out

ACTOR: Final = "user:load@simulator"
MIB: Final = 1 << 20
CHUNKS: Final = 4


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """`artifacts` are there at the beginning, a third of a node's memory full of them; then, for
    `hour_s` seconds, come so many `gets`, `puts` and `requests` (each for `fan_out` nodes) a
    second, so many `crashes` an hour, and so many `cuts` of nodes from the log, each for `cut_s` on
    average. A get is of one of the few popular artifacts more often than of the others (Zipf,
    exponent 1)."""

    nodes: int = 100
    artifacts: int = 10_000
    hour_s: float = 3600.0
    gets: float = 20.0
    puts: float = 2.0
    requests: float = 0.5
    fan_out: int = 8
    crashes: float = 10.0
    away_s: float = 30.0
    cuts: float = 0.0
    cut_s: float = 20.0
    bandwidth: int = 10 * 10**9


class Scenario:
    """A world under a load. `prepare` makes the cluster, `run` lets the hour pass."""

    def __init__(self, world: World, load: Load) -> None:
        self.world = world
        self.load = load
        self.fleet = Fleet(world)
        self.nodes = [NodeId(f"n{number}") for number in range(1, load.nodes + 1)]
        self.artifacts: list[ArtifactId] = []
        self.reads = 0
        self.hits = 0
        self._manifest = _manifest()
        self._dram = max(64, 3 * load.artifacts // load.nodes) * self._manifest.size_bytes
        self._meter: Meter | None = None

    def prepare(self) -> None:
        """All nodes join, and all artifacts are there, each on one node under a key."""
        for number, node in enumerate(self.nodes):
            self.fleet.add(
                JoinNode(
                    node=node,
                    epoch=Epoch(1),
                    address=f"{node}:1",
                    tiers={Tier.DRAM: self._dram, Tier.DISK: 10 * self._dram},
                    transports=("tcp",),
                    labels={"rack": f"r{number // 32}"},
                    bandwidth=self.load.bandwidth,
                )
            )
        for number in range(self.load.artifacts):
            self._seal(self.nodes[number % len(self.nodes)])

    def run(self) -> Measures:
        """The hour, with everything that users and fate do. Returns what it came to."""
        self._meter = meter = Meter(self.world.view)
        self.world.watchers.append(lambda recorded: meter.note(recorded, self.world.view))
        end_s = self.world.agenda.now_s + self.load.hour_s
        for rate, action in (
            (self.load.gets, self._get),
            (self.load.puts, self._put),
            (self.load.requests, self._request),
            (self.load.crashes / 3600.0, self._crash),
            (self.load.cuts / 3600.0, self._cut),
        ):
            self._repeat(rate, action, end_s)
        cut_s = 2 * self.load.cut_s if self.load.cuts else 0.0
        self.world.agenda.run(end_s + self.load.away_s + cut_s + 60.0)
        return meter.result()

    def _repeat(self, rate: float, action: Action, end_s: float) -> None:
        if rate <= 0:
            return

        def happen() -> None:
            if self.world.agenda.now_s < end_s:
                action()
                self.world.agenda.after(self.world.random.expovariate(rate), happen)

        self.world.agenda.after(self.world.random.expovariate(rate), happen)

    # ---- what happens ------------------------------------------------------------------------

    def _get(self) -> None:
        machine = self._machine()
        if machine is None:
            return
        self.reads += 1
        if machine.read(self._popular()):
            self.hits += 1
            if self._meter is not None:
                self._meter.hit()

    def _put(self) -> None:
        machine = self._machine()
        if machine is not None and not machine.is_cut:
            self._seal(machine.node)

    def _request(self) -> None:
        nodes = tuple(self.world.random.sample(self.nodes, min(self.load.fan_out, len(self.nodes))))
        up = tuple(node for node in nodes if self.fleet.machines[node].is_up)
        command = RequestReplicas(artifact=self._popular(), nodes=up)
        self.world.try_to(command, actor=ACTOR)

    def _crash(self) -> None:
        machine = self._machine()
        if machine is not None:
            machine.crash()
            self.world.agenda.after(self.load.away_s, machine.restart)

    def _cut(self) -> None:
        machine = self._machine()
        if machine is not None and not machine.is_cut:
            machine.cut()
            lasts_s = self.world.random.uniform(0.0, 2.0) * self.load.cut_s
            self.world.agenda.after(lasts_s, machine.mend)

    def _machine(self) -> Machine | None:
        machine = self.fleet.machines[self.world.random.choice(self.nodes)]
        return machine if machine.is_up else None

    def _popular(self) -> ArtifactId:
        """Number k of n with a chance of about 1/k."""
        count = len(self.artifacts)
        place = int(count ** self.world.random.random()) - 1
        return self.artifacts[min(place, count - 1)]

    def _seal(self, node: NodeId) -> None:
        number = len(self.artifacts)
        artifact = ArtifactId(hashlib.sha1(b"%d" % number, usedforsecurity=False).hexdigest())
        seal = SealArtifact(artifact=artifact, kind="weights", manifest=self._manifest)
        replica = CompleteReplica(
            replica=replica_id(artifact, node, Tier.DRAM),
            artifact=artifact,
            node=node,
            tier=Tier.DRAM,
            epoch=self.world.view.nodes[node].epoch,
            chunks_total=CHUNKS,
        )
        key = MoveKey(key=Key(f"a{number}"), artifact=artifact)
        if free_bytes(self.world.view, node, Tier.DRAM) < self._manifest.size_bytes:
            return
        if self.world.try_to(seal, replica, key, actor=f"mover:{node}"):
            self.artifacts.append(artifact)


def _manifest() -> Manifest:
    index, size = lay_out([("weight", "U8", (CHUNKS * MIB,))])
    return Manifest(index=index, size_bytes=size, chunk_bytes=MIB, digests=bytes(8 * CHUNKS))
