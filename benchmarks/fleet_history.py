"""A realistic history of any length: a fleet that trains and serves, made event by event.

Each round a trainer publishes weights, eight nodes get them by operations of a policy, their
engines serve them under leases, and the weights of some rounds ago are removed and evicted. Now and
then an operation fails and is retried, a node is lost and joins again, and signals are emitted. All
of it is legal, and the same for the same seed.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator
from datetime import UTC, datetime, timedelta

from tensorcast.schema.chunks import ChunkSet, choose_chunk_bytes, count_chunks
from tensorcast.schema.engine_events import EngineRegistered, EngineServing
from tensorcast.schema.envelope import Draft
from tensorcast.schema.events import (
    ArtifactRemoved,
    ArtifactSealed,
    Event,
    KeyMoved,
    LeaseAcquired,
    LeaseReleased,
    NodeJoined,
    NodeLost,
    OperationFailed,
    OperationIssued,
    OperationRetried,
    OperationStarted,
    OperationSucceeded,
    ReplicaEvicting,
    ReplicaFilled,
    ReplicaGone,
    ReplicaReady,
    ReplicasRequested,
    ReplicaStarted,
    SignalEmitted,
)
from tensorcast.schema.faults import Fault, FaultKind
from tensorcast.schema.ids import (
    ArtifactId,
    EngineId,
    Epoch,
    EventId,
    Key,
    LeaseId,
    NodeId,
    OperationId,
    Tier,
    replica_id,
)
from tensorcast.schema.signals import Topic
from tensorcast.schema.tensors import Manifest, lay_out
from tensorcast.schema.work import Evict, Materialize, Work

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
NODES = 32
FANOUT = 8
KEPT_ROUNDS = 12
MODELS = 6
FAILURE_SHARE = 0.01
LOSS_SHARE = 0.01
TRAINER = "user:trainer@fleet"


class Fleet:
    """Makes drafts, round by round. Modified by `rounds`."""

    def __init__(self, seed: int = 7, tensors: int = 290) -> None:
        self._random = random.Random(seed)
        self._number = 0
        self._at = BEGIN
        self._index, self._size_bytes = lay_out(
            (f"model.layers.{i}.weight", "BF16", (1024, 1024)) for i in range(tensors)
        )
        self._epochs = [1] * NODES
        self._heads: dict[Key, tuple[ArtifactId, int]] = {}
        self._kept: list[tuple[ArtifactId, list[int], list[LeaseId]]] = []
        self._round = 0

    def begin(self) -> Iterator[Draft]:
        """The nodes and engines come up."""
        for number in range(NODES):
            yield self._draft(self._joined(number), f"mover:n{number}")
            engine = EngineRegistered(
                engine=EngineId(f"engine-{number}"),
                life="one",
                kind="vllm",
                node=NodeId(f"n{number}"),
                model="llama-8b",
                url=f"http://n{number}:8000",
                ttl_s=15.0,
            )
            yield self._draft(engine, f"engine:engine-{number}")

    def rounds(self) -> Iterator[Draft]:
        """One round after the other, for ever."""
        while True:
            yield from self._publish()
            if len(self._kept) > KEPT_ROUNDS:
                yield from self._retire(*self._kept.pop(0))
            if self._random.random() < LOSS_SHARE:
                yield from self._lose(self._random.randrange(NODES))
            self._round += 1

    def _publish(self) -> Iterator[Draft]:
        artifact = ArtifactId(f"{self._random.getrandbits(160):040x}")
        home = self._random.randrange(NODES)
        chunk_bytes = choose_chunk_bytes(self._size_bytes)
        chunks = count_chunks(self._size_bytes, chunk_bytes)
        manifest = Manifest(
            index=self._index,
            size_bytes=self._size_bytes,
            chunk_bytes=chunk_bytes,
            digests=self._random.randbytes(8 * chunks),
        )
        labels = {"round": str(self._round)}
        sealed = ArtifactSealed(artifact=artifact, kind="weights", manifest=manifest, labels=labels)
        yield self._draft(sealed, TRAINER)
        yield self._draft(self._ready(artifact, home, chunks), TRAINER)
        key = Key(f"policy-{self._round % MODELS}")
        previous, version = self._heads.get(key, (None, 0))
        self._heads[key] = artifact, version + 1
        moved = KeyMoved(key=key, artifact=artifact, previous=previous, version=version + 1)
        yield self._draft(moved, TRAINER)
        said = SignalEmitted(topic=Topic(f"weights.{key}"), data={"artifact": artifact})
        yield self._draft(said, TRAINER)
        others = [number for number in range(NODES) if number != home]
        targets = self._random.sample(others, FANOUT)
        names = tuple(NodeId(f"n{number}") for number in targets)
        wanted = ReplicasRequested(artifact=artifact, nodes=names, tier=Tier.DRAM)
        request = self._draft(wanted, TRAINER)
        yield request
        leases = []
        for number in targets:
            yield from self._fill(artifact, home, number, chunks, request.id)
            leases.append(LeaseId(f"lease-{self._random.getrandbits(60):015x}"))
            yield from self._serve(artifact, number, leases[-1])
        self._kept.append((artifact, [home, *targets], leases))

    def _fill(
        self, artifact: ArtifactId, home: int, number: int, chunks: int, cause: EventId
    ) -> Iterator[Draft]:
        node, epoch = NodeId(f"n{number}"), Epoch(self._epochs[number])
        replica = replica_id(artifact, node, Tier.DRAM)
        work = Materialize(artifact=artifact, sources=(NodeId(f"n{home}"),))
        operation = yield from self._issue(work, number, "replicate", cause)
        mover = f"mover:{node}"
        attempt = 1
        if self._random.random() < FAILURE_SHARE:
            fault = Fault(kind=FaultKind.UNAVAILABLE, detail="the peer did not answer")
            failed = OperationFailed(operation=operation, epoch=epoch, fault=fault)
            yield self._draft(failed, mover, cause)
            attempt = 2
            again = OperationRetried(operation=operation, attempt=attempt)
            yield self._draft(again, "controlplane", cause)
            started = OperationStarted(operation=operation, epoch=epoch, attempt=attempt)
            yield self._draft(started, mover, cause)
        begun = ReplicaStarted(
            replica=replica,
            artifact=artifact,
            node=node,
            tier=Tier.DRAM,
            epoch=epoch,
            chunks_total=chunks,
        )
        yield self._draft(begun, mover, cause)
        for part in range(3):
            part_chunks = ChunkSet(((part * chunks // 3, (part + 1) * chunks // 3),))
            filled = ReplicaFilled(replica=replica, epoch=epoch, chunks=part_chunks)
            yield self._draft(filled, mover, cause)
        yield self._draft(self._ready(artifact, number, chunks), mover, cause)
        yield self._succeed(operation, number, self._size_bytes, cause)

    def _serve(self, artifact: ArtifactId, number: int, lease: LeaseId) -> Iterator[Draft]:
        engine = EngineId(f"engine-{number}")
        held = LeaseAcquired(
            lease=lease, artifact=artifact, node=NodeId(f"n{number}"), holder=engine, ttl_s=60.0
        )
        yield self._draft(held, f"engine:{engine}")
        serving = EngineServing(
            engine=engine,
            life="one",
            version=f"v{self._round}",
            artifact=artifact,
            since=self._at,
        )
        yield self._draft(serving, f"engine:{engine}")

    def _retire(
        self, artifact: ArtifactId, numbers: list[int], leases: list[LeaseId]
    ) -> Iterator[Draft]:
        for lease in leases:
            yield self._draft(LeaseReleased(lease=lease), TRAINER)
        removal = self._draft(ArtifactRemoved(artifact=artifact), TRAINER)
        yield removal
        for number in numbers:
            node, epoch = NodeId(f"n{number}"), Epoch(self._epochs[number])
            work = Evict(artifact=artifact, tier=Tier.DRAM, reason="removed")
            operation = yield from self._issue(work, number, "evict", removal.id)
            replica = replica_id(artifact, node, Tier.DRAM)
            mover = f"mover:{node}"
            leaving = ReplicaEvicting(replica=replica, epoch=epoch, reason="removed")
            yield self._draft(leaving, mover, removal.id)
            yield self._draft(ReplicaGone(replica=replica, epoch=epoch), mover, removal.id)
            yield self._succeed(operation, number, 0, removal.id)

    def _issue(
        self, work: Work, number: int, policy: str, cause: EventId
    ) -> Generator[Draft, None, OperationId]:
        operation = OperationId(f"op-{self._random.getrandbits(160):040x}")
        issued = OperationIssued(
            operation=operation, node=NodeId(f"n{number}"), work=work, policy=policy
        )
        yield self._draft(issued, f"policy:{policy}", cause)
        epoch = Epoch(self._epochs[number])
        started = OperationStarted(operation=operation, epoch=epoch, attempt=1)
        yield self._draft(started, f"mover:n{number}", cause)
        return operation

    def _succeed(
        self, operation: OperationId, number: int, bytes_moved: int, cause: EventId
    ) -> Draft:
        done = OperationSucceeded(
            operation=operation,
            epoch=Epoch(self._epochs[number]),
            bytes_moved=bytes_moved,
            transports={"tcp": bytes_moved} if bytes_moved else {},
        )
        return self._draft(done, f"mover:n{number}", cause)

    def _lose(self, number: int) -> Iterator[Draft]:
        epoch = Epoch(self._epochs[number])
        lost = NodeLost(node=NodeId(f"n{number}"), epoch=epoch, silent_s=5.0)
        yield self._draft(lost, "timers")
        self._epochs[number] += 1
        yield self._draft(self._joined(number), f"mover:n{number}")

    def _joined(self, number: int) -> NodeJoined:
        return NodeJoined(
            node=NodeId(f"n{number}"),
            epoch=Epoch(self._epochs[number]),
            address=f"10.0.0.{number}:7000",
            tiers={Tier.DRAM: 1 << 40},
            transports=("tcp",),
            labels={"rack": f"r{number // 8}"},
        )

    def _ready(self, artifact: ArtifactId, number: int, chunks: int) -> ReplicaReady:
        node = NodeId(f"n{number}")
        return ReplicaReady(
            replica=replica_id(artifact, node, Tier.DRAM),
            artifact=artifact,
            node=node,
            tier=Tier.DRAM,
            epoch=Epoch(self._epochs[number]),
            chunks_total=chunks,
        )

    def _draft(self, event: Event, actor: str, cause: EventId | None = None) -> Draft:
        self._number += 1
        self._at += timedelta(milliseconds=self._random.randrange(1, 40))
        bits = self._random.getrandbits(128) & ~(0xF << 76) & ~(0x3 << 62) | 7 << 76 | 2 << 62
        digits = f"{bits:032x}"
        parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
        return Draft(
            id=EventId("-".join(parts)), at=self._at, actor=actor, event=event, cause=cause
        )
