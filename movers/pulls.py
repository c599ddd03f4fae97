"""One transfer, run: the pure machine of `core.transfer` with real channels and a real log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from tensorcast.log.follower import Follower
from tensorcast.movers.core.absence import explain_absence
from tensorcast.movers.core.holdings import doubted_replicas, peers_with
from tensorcast.movers.core.sources import Source
from tensorcast.movers.core.transfer import (
    Broken,
    Completion,
    Target,
    Transfer,
    TransferStatus,
    Turn,
    advance,
    begin,
    learn,
)
from tensorcast.movers.links import Links
from tensorcast.movers.replicas import filled
from tensorcast.movers.reports import Life, Reporter
from tensorcast.movers.residents import Resident, Residents
from tensorcast.movers.transports.base import Transport
from tensorcast.schema.aggregates.artifact import Artifact
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.commands import RequestVerification
from tensorcast.schema.errors import Unavailable
from tensorcast.schema.events import ReplicaFilled
from tensorcast.schema.faults import FaultKind, to_error
from tensorcast.schema.ids import ArtifactId, EventId, NodeId

NEWS_S: Final = 0.5


class Moved(msgspec.Struct, frozen=True):
    """Bytes that came, in all and by transport."""

    size_bytes: int = 0
    transports: dict[str, int] = {}


class Puller:
    """Fills residents from other nodes."""

    def __init__(
        self,
        residents: Residents,
        transport: Transport,
        reporter: Reporter,
        follower: Follower,
        life: Life,
    ) -> None:
        self._residents = residents
        self._transport = transport
        self._reporter = reporter
        self._follower = follower
        self._life = life

    def check_sources(self, artifact: Artifact) -> None:
        """Raises Unavailable when no node that is up has any of the artifact's bytes."""
        if artifact.manifest.chunks_total and not self.sources(artifact.id):
            manifest = artifact.manifest
            missing = ChunkSet.full(manifest.chunks_total)
            raise to_error(
                explain_absence(artifact.id, missing, manifest),
                artifact=artifact.id,
                node=self._life.node,
                operation=None,
            )

    async def pull(self, resident: Resident, preferred: Sequence[NodeId], cause: EventId) -> Moved:
        """Pulls what the resident misses from the nodes that have it, `preferred` ones first.
        Raises what the fault of the last source stands for; what came before stays."""
        target = Target(artifact=resident.id, node=self._life.node, epoch=self._life.epoch)
        sources = self.sources(resident.id, preferred)
        turn = begin(target, resident.manifest, resident.missing, sources)
        region = self._transport.register(resident.segment.memory)
        try:
            async with Links(self._transport, region, self._address) as links:
                transfer = await self._run(turn, links, resident, preferred, cause)
        finally:
            region.close()
        if transfer.status is TransferStatus.FAILED and transfer.fault is not None:
            raise to_error(
                transfer.fault, artifact=resident.id, node=self._life.node, operation=None
            )
        return Moved(transfer.bytes_moved, transfer.transports)

    async def _run(
        self,
        turn: Turn,
        links: Links,
        resident: Resident,
        preferred: Sequence[NodeId],
        cause: EventId,
    ) -> Transfer:
        """post -> record -> completions -> advance, until nothing is missing or nobody has it."""
        seen = self._follower.view
        doubted: set[NodeId] = set()
        while True:
            # Progress is done already: the next pulls need not wait until its report is on disk.
            links.post(turn.pulls)
            await self._record(turn, resident, cause)
            if turn.status is not TransferStatus.RUNNING or resident.is_dropped:
                return turn.transfer
            completions = await links.completions(NEWS_S)
            await self._doubt(completions, doubted, cause)
            turn = self._advance(turn.transfer, completions, resident)
            if self._has_news(seen, resident.id):
                seen = self._follower.view
                turn = _merge(turn, learn(turn.transfer, self.sources(resident.id, preferred)))

    def _advance(
        self, transfer: Transfer, completions: Sequence[Completion], resident: Resident
    ) -> Turn:
        missing = transfer.missing
        merged = Turn(transfer=transfer)
        for completion in completions:
            merged = _merge(merged, advance(merged.transfer, completion))
        self._residents.add_chunks(resident, missing - merged.transfer.missing)
        return merged

    async def _doubt(
        self, completions: Sequence[Completion], doubted: set[NodeId], cause: EventId
    ) -> None:
        """Has the replicas of peers that sent damaged bytes checked, each peer's once."""
        for completion in completions:
            pull = completion.pull
            if not isinstance(completion, Broken) or pull.peer in doubted:
                continue
            if completion.fault.kind is FaultKind.CORRUPT:
                doubted.add(pull.peer)
                replicas = doubted_replicas(self._follower.view, pull.artifact, pull.peer)
                if replicas:
                    check = RequestVerification(artifact=pull.artifact, replicas=replicas)
                    await self._reporter.report([check], cause)

    async def _record(self, turn: Turn, resident: Resident, cause: EventId) -> None:
        """Progress only: that it is complete, or failed, is reported by the frame."""
        news = [event.chunks for event in turn.events if isinstance(event, ReplicaFilled)]
        commands = [filled(resident, chunks, self._life) for chunks in news]
        if commands and not resident.is_dropped:
            await self._reporter.report(commands, cause)

    def _has_news(self, seen: ClusterView, artifact: ArtifactId) -> bool:
        view = self._follower.view
        if view is seen:
            return False
        members = view.replicas_by_artifact.get(artifact, frozenset())
        return view.nodes is not seen.nodes or any(
            view.replicas[id_] is not seen.replicas.get(id_) for id_ in members
        )

    def sources(self, artifact: ArtifactId, preferred: Sequence[NodeId] = ()) -> tuple[Source, ...]:
        """Who could be asked for the artifact now."""
        name = self._transport.name
        peers = peers_with(self._follower.view, artifact, self._life.node, preferred)
        return tuple(
            Source(
                node=peer.node,
                epoch=peer.epoch,
                chunks=peer.chunks,
                is_filling=peer.is_filling,
                transport=name,
            )
            for peer in peers
            if name in peer.transports
        )

    def _address(self, peer: NodeId) -> str:
        node = self._follower.view.nodes.get(peer)
        if node is None:
            raise Unavailable(f"Node {peer} is not known.", node=peer)
        return node.address


def _merge(first: Turn, second: Turn) -> Turn:
    """Both turns' work, in order."""
    return Turn(
        transfer=second.transfer,
        pulls=(*first.pulls, *second.pulls),
        events=(*first.events, *second.events),
    )
