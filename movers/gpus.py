"""The devices of a node, wired: what lies on them, and what is done with them. A node without a
device has the same parts, which say so when they are asked."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tensorcast.gpu.finding import find_gpus
from tensorcast.gpu.port import Gpu
from tensorcast.log.follower import Follower
from tensorcast.movers.core.holdings import choose_demand
from tensorcast.movers.core.supply import DIRECT, peers_with
from tensorcast.movers.fabric import Fabric
from tensorcast.movers.fills import Fills
from tensorcast.movers.gpu_room import GpuRoom
from tensorcast.movers.gpu_work import GpuWork
from tensorcast.movers.memory.cuda import CudaPool
from tensorcast.movers.memory.handover import Lifelines
from tensorcast.movers.peers import Peers
from tensorcast.movers.pulls import Moved, Puller
from tensorcast.movers.reports import Life, Reporter
from tensorcast.movers.residents import Residents
from tensorcast.movers.settings import Settings
from tensorcast.schema.ids import ArtifactId, EventId, NodeId
from tensorcast.schema.work import Load

_logger = logging.getLogger(__name__)


def open_room(
    settings: Settings,
    lifelines: Lifelines,
    fabric: Fabric,
    reporter: Reporter,
    follower: Follower,
    life: Life,
) -> GpuRoom:
    """The memory of this node's devices that replicas may take. Never raises for what the machine
    lacks."""
    gpus: Sequence[Gpu] = ()
    if settings.gpu_bytes:
        gpus, why_not = find_gpus(settings.gpu)
        if not gpus:
            _logger.warning("nothing is kept on a GPU: %s", why_not)
    pool = CudaPool(gpus, settings.gpu_bytes, lifelines.readers, fabric.watcher)
    return GpuRoom(pool, reporter, follower, life, wait_s=settings.room_wait_s)


def make_work(
    room: GpuRoom,
    residents: Residents,
    fills: Fills,
    fabric: Fabric,
    reporter: Reporter,
    follower: Follower,
    life: Life,
) -> GpuWork:
    """What can be done with the devices, by the transports that there are."""
    adapters = {name: one for name, one in fabric.transports.items() if name == DIRECT}
    direct = None
    if adapters:
        direct = Puller(residents, adapters, Peers(), reporter, follower, life)

    async def bring(
        artifact: ArtifactId, sources: Sequence[NodeId], cause: EventId | None
    ) -> Moved:
        view = follower.view
        is_served = bool(peers_with(view, artifact, life.node))
        work = choose_demand(view, artifact, life.node, is_served=is_served)
        if isinstance(work, Load):
            return await fills.load(artifact, cause, tier=work.tier)
        return await fills.materialize(artifact, sources, cause)

    return GpuWork(room, residents, bring, direct, reporter, follower, life)
