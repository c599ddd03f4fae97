"""Who has been heard of lately: heartbeats of movers, signs of life of engines, renewals of leases.

None is an event: they are core NATS messages, and only their absence enters the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from urllib.parse import unquote

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg

from tensorcast.schema.api import PeerInfo, TierInfo
from tensorcast.schema.ids import EngineId, Epoch, LeaseId, NodeId, Tier
from tensorcast.schema.subjects import heartbeats, presences, renewals

NUMBERS_MAX = 100
"""Most numbers that are kept of an engine."""


class Heartbeat(msgspec.Struct, frozen=True):
    """What a mover says of itself: the life that it is in, what its tiers hold, in bytes, the
    peers that it does not rely on, counters of its KV blocks, and why it takes no new work."""

    epoch: Epoch
    tiers: dict[Tier, TierInfo] = {}
    peers: tuple[PeerInfo, ...] = ()
    blocks: dict[str, int] = {}
    trouble: str = ""


class Heard(msgspec.Struct, frozen=True):
    """The last heartbeat of a node, and when it came on the clock of `Heartbeats`, in seconds."""

    at_s: float
    heartbeat: Heartbeat


class Pulse(msgspec.Struct, frozen=True):
    """What an engine says of itself: the life that it is in, and numbers such as `cache_usage`."""

    life: str
    load: dict[str, float] = {}


class HeardEngine(msgspec.Struct, frozen=True):
    """The last sign of life of an engine, and when it came on the clock of `Heartbeats`."""

    at_s: float
    pulse: Pulse


class Heartbeats:
    """Collects heartbeats and renewals of one cluster. `clock` counts seconds, never backwards."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.nodes: dict[NodeId, Heard] = {}
        self.leases: dict[LeaseId, float] = {}
        self.engines: dict[EngineId, HeardEngine] = {}

    def hear_node(self, node: NodeId, payload: bytes) -> None:
        """Notes a heartbeat. Anything else on the subject is ignored."""
        try:
            heartbeat = msgspec.json.decode(payload, type=Heartbeat)
        except msgspec.MsgspecError:
            return
        self.nodes[node] = Heard(self.clock(), heartbeat)

    def hear_lease(self, lease: LeaseId) -> None:
        """Notes a renewal."""
        self.leases[lease] = self.clock()

    def hear_engine(self, engine: EngineId, payload: bytes) -> None:
        """Notes a sign of life; what it does not speak of stays as another process of the same life
        has said it. Anything else on the subject is ignored."""
        try:
            pulse = msgspec.json.decode(payload, type=Pulse)
        except msgspec.MsgspecError:
            return
        known = self.engines.get(engine)
        if known is not None and known.pulse.life == pulse.life:
            load = {**known.pulse.load, **pulse.load}
            pulse = Pulse(pulse.life, dict(list(load.items())[:NUMBERS_MAX]))
        self.engines[engine] = HeardEngine(self.clock(), pulse)

    def forget_engines(self, up: frozenset[EngineId]) -> None:
        """Keeps only the engines that run: anybody may send signs of life."""
        for engine in self.engines.keys() - up:
            del self.engines[engine]

    def forget_leases(self, held: frozenset[LeaseId]) -> None:
        """Keeps only the leases that are held: anybody may send renewals."""
        for lease in self.leases.keys() - held:
            del self.leases[lease]

    async def run(self, nats: Client, cluster: str) -> None:
        """Listens for ever."""

        async def on_heartbeat(message: Msg) -> None:
            self.hear_node(NodeId(_last_token(message.subject)), message.data)

        async def on_renewal(message: Msg) -> None:
            self.hear_lease(LeaseId(unquote(_last_token(message.subject))))

        async def on_presence(message: Msg) -> None:
            self.hear_engine(EngineId(unquote(_last_token(message.subject))), message.data)

        await nats.subscribe(heartbeats(cluster), cb=on_heartbeat)
        await nats.subscribe(presences(cluster), cb=on_presence)
        await nats.subscribe(renewals(cluster), cb=on_renewal)
        await asyncio.Event().wait()


def _last_token(subject: str) -> str:
    return subject.rsplit(".", 1)[-1]
