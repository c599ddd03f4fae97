"""Clients that never stop, and that write down what they did and what they were told."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf

from chaos.registers import Kind, Operation
from chaos.world import CLUSTER, World
from histories import Dice
from mover_nodes import Content
from samples import artifact_id, manifest
from tensorcast.client.api import ControlPlane
from tensorcast.client.position import Position
from tensorcast.log.execute import execute
from tensorcast.log.follower import Follower
from tensorcast.log.jetstream import JetStreamLog, connect_log
from tensorcast.log.writer import Writer
from tensorcast.schema.commands import MoveKey, RemoveKey, SealArtifact
from tensorcast.schema.errors import Conflict, NotFound, TensorCastError, Unavailable
from tensorcast.schema.ids import ArtifactId, EventId, Key, Seq

KEYS = tuple(Key(f"register-{number}") for number in range(4))
ARTIFACTS = tuple(artifact_id(f"register-{number}") for number in range(6))
CLIENTS = 6
CALL_S_MAX = 5.0
PAUSE_S = 0.02
PUT_BYTES = 4096
UNREACHABLE_S = 0.1


@dataclass
class Record:
    """Everything that was called and answered. `acknowledged`: events, with their positions."""

    acknowledged: dict[EventId, Seq] = field(default_factory=dict)
    sealed: dict[ArtifactId, Seq] = field(default_factory=dict)
    operations: dict[Key, list[tuple[str, Operation]]] = field(
        default_factory=lambda: {key: [] for key in KEYS}
    )
    answers: dict[str, int] = field(default_factory=dict)

    def count(self, what: str) -> None:
        self.answers[what] = self.answers.get(what, 0) + 1


class Client:
    """A user who moves, clears and reads keys through whichever control plane answers. Every
    change has an actor of its own, so that the log tells which of those without an answer
    happened."""

    def __init__(self, number: int, world: World, record: Record, seed: int) -> None:
        self._name = f"user:c{number}"
        self._dice = random.Random(seed)
        self._record = record
        self._api = ControlPlane(
            world.nats.url, CLUSTER, self._name, Position(), timeout_s=CALL_S_MAX
        )
        self._believed: dict[Key, ArtifactId | None] = dict.fromkeys(KEYS)
        self._calls = 0

    async def run(self) -> None:
        try:
            while True:
                await self._step(self._dice.choice(KEYS))
                await asyncio.sleep(self._dice.random() * 2 * PAUSE_S)
        finally:
            await self._api.aclose()

    async def _step(self, key: Key) -> None:
        self._calls += 1
        self._api.actor = f"{self._name}-{self._calls}"
        chance = self._dice.random()
        if chance < 0.4:
            await self._read(key)
        elif chance < 0.9:
            await self._move(key)
        else:
            await self._clear(key)

    async def _read(self, key: Key) -> None:
        began = time.monotonic()
        try:
            async with asyncio.timeout(2 * CALL_S_MAX):
                value: ArtifactId | None = (await self._api.key(key)).artifact
        except NotFound:
            value = None
        except (TensorCastError, TimeoutError) as error:
            self._record.count(f"read: {type(error).__name__}")
            await asyncio.sleep(UNREACHABLE_S)
            return
        self._believed[key] = value
        self._note(key, Operation(Kind.READ, began, time.monotonic(), value))

    async def _move(self, key: Key) -> None:
        expect, target = self._believed[key], self._dice.choice(ARTIFACTS)
        command = MoveKey(key=key, artifact=target, expect=expect)
        began = time.monotonic()
        try:
            done = await self._api.execute(command)
        except Conflict as error:
            self._believed[key] = None
            if "points to" in str(error) or "does not exist" in str(error):
                refused = Operation(Kind.REFUSED, began, time.monotonic(), target, expect)
                self._note(key, refused)
                with suppress(TensorCastError):
                    await self._look(key)
            else:  # others kept winning: nothing was done, and nothing is said of the key
                self._record.count("move: overtaken")
            return
        except (TensorCastError, asyncio.CancelledError) as error:
            self._doubt(key, Operation(Kind.MOVED, began, inf, target, expect, False), error)
            await asyncio.sleep(UNREACHABLE_S)
            return
        self._believed[key] = target
        self._acknowledge(done.events, done.seq)
        self._note(key, Operation(Kind.MOVED, began, time.monotonic(), target, expect))

    async def _look(self, key: Key) -> None:
        with suppress(NotFound):
            await self._read(key)

    async def _clear(self, key: Key) -> None:
        began = time.monotonic()
        try:
            done = await self._api.execute(RemoveKey(key=key))
        except NotFound:
            self._note(key, Operation(Kind.MISSING, began, time.monotonic()))
            return
        except Conflict:
            self._record.count("clear: overtaken")
            return
        except (TensorCastError, asyncio.CancelledError) as error:
            self._doubt(key, Operation(Kind.CLEARED, began, is_sure=False), error)
            await asyncio.sleep(UNREACHABLE_S)
            return
        self._believed[key] = None
        self._acknowledge(done.events, done.seq)
        self._note(key, Operation(Kind.CLEARED, began, time.monotonic()))

    def _doubt(self, key: Key, operation: Operation, error: BaseException) -> None:
        """Notes a change that got no answer: it may have happened. So does one under way when the
        test ends."""
        self._record.count(f"change: {type(error).__name__}")
        self._record.operations[key].append((self._api.actor, operation))
        if isinstance(error, asyncio.CancelledError):
            raise error

    def _note(self, key: Key, operation: Operation) -> None:
        self._record.count(operation.kind.value)
        self._record.operations[key].append((self._api.actor, operation))

    def _acknowledge(self, events: tuple[EventId, ...], seq: Seq) -> None:
        first = seq - len(events) + 1
        for offset, event in enumerate(events):
            self._record.acknowledged[event] = Seq(first + offset)


async def prepare(world: World) -> None:
    """The artifacts that keys point to."""
    log = await connect_log(world.nats.url, CLUSTER, name="prepare")
    follower = Follower(log)
    running = asyncio.create_task(follower.run())
    for artifact in ARTIFACTS:
        seal = SealArtifact(artifact=artifact, kind="weights", manifest=manifest())
        await execute(log, follower, [seal], actor="mover:test")
    running.cancel()
    await log.aclose()


async def write_histories(world: World, record: Record, seed: int) -> None:
    """What movers and schedulers may write, by chance, straight into the log."""
    log = await _connect(world)
    follower, writer = Follower(log), Writer(log)
    dice = Dice(seed)
    async with asyncio.TaskGroup() as tasks:
        for part in (follower, writer):
            tasks.create_task(part.run())
        try:
            while True:
                drafts = dice.drafts(follower.view)
                try:
                    seqs = await writer.append(drafts)
                except TensorCastError as error:
                    record.count(f"append: {type(error).__name__}")
                    await asyncio.sleep(UNREACHABLE_S)
                    continue
                record.count("append")
                record.acknowledged |= dict(zip((draft.id for draft in drafts), seqs, strict=True))
                with suppress(TensorCastError):
                    await follower.wait_for(seqs[-1], CALL_S_MAX)
                await asyncio.sleep(PAUSE_S)
        finally:
            await log.aclose()


async def _connect(world: World) -> JetStreamLog:
    while True:
        try:
            return await connect_log(world.nats.url, CLUSTER, name="histories")
        except Unavailable:
            await asyncio.sleep(UNREACHABLE_S)


async def put_artifacts(world: World, record: Record, seed: int) -> None:
    """Small artifacts, put on the mover one after the other."""
    number = seed * 1_000_000
    while True:
        number += 1
        try:
            artifact, seq = await asyncio.to_thread(_put, world, number)
        except (TensorCastError, OSError, AssertionError) as error:
            record.count(f"put: {type(error).__name__}")
            await asyncio.sleep(UNREACHABLE_S)
            continue
        record.count("put")
        record.sealed[artifact] = seq
        await asyncio.sleep(5 * PAUSE_S)


def _put(world: World, number: int) -> tuple[ArtifactId, Seq]:
    with world.mover.application() as application:
        application.socket.settimeout(CALL_S_MAX)
        sealed = application.put(Content([PUT_BYTES], seed=number))
        return sealed.artifact, sealed.seq
