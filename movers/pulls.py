"""One transfer, run: the pure machine of `core.transfer` with real channels and a real log."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from tensorcast.log.follower import Follower
from tensorcast.movers.core.absence import explain_absence
from tensorcast.movers.core.health import Standing
from tensorcast.movers.core.holdings import doubted_replicas
from tensorcast.movers.core.laggards import Reason
from tensorcast.movers.core.sources import Source, next_rest_s
from tensorcast.movers.core.supply import choose_sources, peers_with, plan_of
from tensorcast.movers.core.transfer import (
    Broken,
    Completion,
    Pull,
    Target,
    Transfer,
    TransferStatus,
    Turn,
    advance,
    begin,
    learn,
    revive,
    tick,
)
from tensorcast.movers.links import Links
from tensorcast.movers.peers import Peers
from tensorcast.movers.reports import Life, Reporter
from tensorcast.movers.residents import Filling, Residents
from tensorcast.movers.transports.base import Transport, is_able
from tensorcast.schema.aggregates.artifact import Artifact
from tensorcast.schema.chunks import ChunkSet
from tensorcast.schema.cluster import ClusterView
from tensorcast.schema.commands import FillReplica, RequestVerification
from tensorcast.schema.errors import TensorCastError, Unavailable
from tensorcast.schema.events import ReplicaFilled
from tensorcast.schema.faults import Detour, Fault, FaultKind, to_error
from tensorcast.schema.ids import ArtifactId, Epoch, EventId, NodeId

TICK_S: Final = 0.1
"""How often a transfer to which nothing comes looks for sources that keep it waiting."""

LOOK_S: Final = 0.5
"""How often it looks for peers that have recovered."""

_QUARANTINED: Final = Standing.QUARANTINED

_LEFT: Final = {
    Reason.SILENT: "it fell silent",
    Reason.SLOW: "it is much slower than others",
    Reason.LATE: "others are ready before it",
}


class Moved(msgspec.Struct, frozen=True):
    """Bytes that came, in all and by transport, and where one transport took over from another."""

    size_bytes: int = 0
    transports: dict[str, int] = {}
    detours: tuple[Detour, ...] = ()

    def plus(self, other: Moved) -> Moved:
        """Both together."""
        names = self.transports.keys() | other.transports.keys()
        return Moved(
            self.size_bytes + other.size_bytes,
            {n: self.transports.get(n, 0) + other.transports.get(n, 0) for n in sorted(names)},
            (*self.detours, *other.detours),
        )


class MovedBefore(Exception):
    """The cause of an error in the middle of an operation: what had come by then."""

    def __init__(self, moved: Moved) -> None:
        super().__init__(f"{moved.size_bytes} bytes had come before")
        self.moved = moved


def moved_before(error: BaseException) -> Moved:
    """What had come before this error."""
    return error.__cause__.moved if isinstance(error.__cause__, MovedBefore) else Moved()


@contextlib.contextmanager
def counting_on(moved: Moved) -> Iterator[None]:
    """What fails in the context fails after this came, too."""
    try:
        yield
    except TensorCastError as error:
        raise error from MovedBefore(moved.plus(moved_before(error)))


class Puller:
    """Fills residents from other nodes."""

    def __init__(
        self,
        residents: Residents,
        transports: Mapping[str, Transport],
        peers: Peers,
        reporter: Reporter,
        follower: Follower,
        life: Life,
    ) -> None:
        self._residents = residents
        self._transports = transports
        self._peers = peers
        self._ways = {name: Peers() for name in transports}
        self._reporter = reporter
        self._follower = follower
        self._life = life

    @property
    def is_able(self) -> bool:
        """Whether any transport can be used now."""
        return any(map(is_able, self._transports.values()))

    def check_sources(self, artifact: Artifact) -> None:
        """Raises Unavailable when no node that is up has any of the artifact's bytes."""
        manifest = artifact.manifest
        missing = ChunkSet.full(manifest.chunks_total)
        if missing.ranges and not self.sources(artifact.id, missing):
            raise to_error(
                explain_absence(artifact.id, missing, manifest),
                artifact=artifact.id,
                node=self._life.node,
                operation=None,
            )

    async def pull(
        self, resident: Filling, preferred: Sequence[NodeId], cause: EventId | None
    ) -> Moved:
        """Pulls what the resident misses from the nodes that have it: the `preferred` ones, or
        those that the operation's plan names by now; others for what these cannot give. Raises what
        the fault of the last source stands for; what came before stays (`moved_before`)."""
        share = resident.add if resident.is_served else None
        async with Links(self._transports, resident.memory, self._address, share) as links:
            run = _Run(links, resident, tuple(preferred), cause)
            transfer = await self._run(run)
        moved = Moved(transfer.bytes_moved, transfer.transports, transfer.detours)
        if transfer.status is TransferStatus.FAILED and transfer.fault is not None:
            raise to_error(
                transfer.fault, artifact=resident.id, node=self._life.node, operation=None
            ) from MovedBefore(moved)
        return moved

    async def _run(self, run: _Run) -> Transfer:
        """post -> record -> completions -> advance, until nothing is missing or nobody has it."""
        resident = run.resident
        target = Target(
            artifact=resident.id,
            node=self._life.node,
            epoch=self._life.epoch,
            base_bytes=resident.base_bytes,
        )
        seen, looked_s = self._follower.view, self._peers.now_s()
        sources = self.sources(resident.id, resident.missing, self._plan(run))
        turn = begin(target, resident.manifest, resident.missing, sources, at_s=looked_s)
        while True:
            # Progress is done already: the next pulls need not wait until its report is on disk.
            run.links.post(turn.pulls)
            self._leave(turn, run.links)
            if turn.events:
                await self._record(turn, resident, run.cause)
            if turn.status is not TransferStatus.RUNNING or resident.is_dropped:
                self._praise(turn.transfer)
                return turn.transfer
            rest_s = next_rest_s(turn.transfer.sources, self._peers.now_s())
            completions = await run.links.completions(min(TICK_S, rest_s))
            await self._judge(completions, run)
            turn = self._advance(turn.transfer, completions, resident)
            now_s = self._peers.now_s()
            is_due = now_s - looked_s >= LOOK_S or turn.status is TransferStatus.FAILED
            if is_due or self._has_news(seen, resident.id):
                seen, looked_s = self._follower.view, now_s
                turn = _merge(turn, self._learn(turn.transfer, run))

    def _plan(self, run: _Run) -> tuple[NodeId, ...]:
        view, artifact = self._follower.view, run.resident.id
        return plan_of(view, artifact, self._life.node) or run.preferred

    def _learn(self, transfer: Transfer, run: _Run) -> Turn:
        """What the log and the health of the peers say now; a transfer whose sources have all
        failed goes on with those that it has not tried."""
        now_s = self._peers.now_s()
        plan = self._plan(run)
        sources = self.sources(run.resident.id, transfer.missing, plan)
        if transfer.status is TransferStatus.FAILED:
            return revive(transfer, sources, now_s)
        self._praise(transfer)
        return learn(transfer, sources, now_s, self._peers.forgiven())

    def _advance(
        self, transfer: Transfer, completions: Sequence[Completion], resident: Filling
    ) -> Turn:
        missing, now_s = transfer.missing, self._peers.now_s()
        merged = Turn(transfer=transfer) if completions else tick(transfer, now_s)
        for completion in completions:
            merged = _merge(merged, advance(merged.transfer, completion, now_s))
        if arrived := missing - merged.transfer.missing:
            resident.add(arrived)
        return merged

    # ---- health of peers -------------------------------------------------------------------

    def _leave(self, turn: Turn, links: Links) -> None:
        for one in turn.leaving:
            why = _LEFT[one.reason]
            links.leave(one.life, f"Node {one.node} was left: {why}.")
            if one.reason is not Reason.LATE:
                self._peers.fail(one.node, one.epoch, why)

    def _praise(self, transfer: Transfer) -> None:
        """Who delivers is in good health."""
        for source in transfer.sources:
            if source.has_delivered:
                self._peers.succeed(source.node, source.epoch, source.pace.rate)
                self._ways[source.transport].succeed(source.node, source.epoch, source.pace.rate)

    async def _judge(self, completions: Sequence[Completion], run: _Run) -> None:
        """Notes who failed, or only the way to it when there is another one, and has the replicas
        of peers that sent damaged bytes checked, each peer's once."""
        for completion in completions:
            if not isinstance(completion, Broken):
                continue
            pull, kind = completion.pull, completion.fault.kind
            if kind is FaultKind.CORRUPT:
                await self._doubt(pull.artifact, pull.peer, run)
            elif kind is not FaultKind.NOT_FOUND:
                self._blame(pull, completion.fault)

    def _blame(self, pull: Pull, fault: Fault) -> None:
        """The peer; or the way to it when there is another one, unless it only cannot bring what
        was asked for."""
        if pull.transport == list(self._transports)[-1]:
            self._peers.fail(pull.peer, pull.epoch, fault.detail)
        elif fault.kind is not FaultKind.INVALID:
            self._ways[pull.transport].fail(pull.peer, pull.epoch, fault.detail)

    async def _doubt(self, artifact: ArtifactId, peer: NodeId, run: _Run) -> None:
        if peer in run.doubted:
            return
        run.doubted.add(peer)
        replicas = doubted_replicas(self._follower.view, artifact, peer)
        if replicas:
            check = RequestVerification(artifact=artifact, replicas=replicas)
            await self._reporter.report([check], run.cause)

    async def _record(self, turn: Turn, resident: Filling, cause: EventId | None) -> None:
        """Progress only: that it is complete, or failed, is reported by the frame."""
        news = [event.chunks for event in turn.events if isinstance(event, ReplicaFilled)]
        commands = [
            FillReplica(replica=resident.replica, epoch=self._life.epoch, chunks=chunks)
            for chunks in news
        ]
        if commands and resident.tells and not resident.is_dropped:
            await self._reporter.report(commands, cause)

    def _has_news(self, seen: ClusterView, artifact: ArtifactId) -> bool:
        view = self._follower.view
        if view is seen:
            return False
        members, own = view.replicas_by_artifact.get(artifact, frozenset()), self._life.node
        return (
            view.nodes is not seen.nodes
            or (
                view.operations is not seen.operations
                and plan_of(view, artifact, own) != plan_of(seen, artifact, own)
            )
            or any(view.replicas[id_] is not seen.replicas.get(id_) for id_ in members)
        )

    def sources(
        self, artifact: ArtifactId, missing: ChunkSet, plan: Sequence[NodeId] = ()
    ) -> tuple[Source, ...]:
        """Who could be asked for these chunks of the artifact now."""
        peers = peers_with(self._follower.view, artifact, self._life.node, plan)
        return choose_sources(peers, missing, self._usable, self._peers.standing, self._peers.rate)

    def _usable(self, node: NodeId, epoch: Epoch) -> Sequence[str]:
        """The transports that have not failed with a peer lately, and the last one, which all
        have."""
        *better, last = self._transports
        able = (n for n in better if is_able(self._transports[n]))
        good = (n for n in able if self._ways[n].standing(node, epoch) is not _QUARANTINED)
        return (*good, last)

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
        leaving=(*first.leaving, *second.leaving),
    )


class _Run:
    """What stays the same, and who was doubted already, while one transfer runs."""

    def __init__(
        self, links: Links, resident: Filling, preferred: tuple[NodeId, ...], cause: EventId | None
    ) -> None:
        self.links = links
        self.resident = resident
        self.preferred = preferred
        self.cause = cause
        self.doubted: set[NodeId] = set()
