"""The measurements: each takes a rig and gives lines of numbers."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence

from events import raw
from events.rig import Commits, Rig
from events.stories import ACTOR, artifact_of, drafts_of, registration
from tensorcast.client.api import ControlPlane
from tensorcast.client.position import Position
from tensorcast.controlplane.core.names import resolve_artifact
from tensorcast.log.batch import prepare
from tensorcast.log.execute import execute
from tensorcast.log.follower import Follower
from tensorcast.log.writer import Writer
from tensorcast.schema.commands import MoveKey
from tensorcast.schema.envelope import Draft
from tensorcast.schema.ids import Key

BATCH = 1000
IN_FLIGHT = 64
OURS, RAW = "tensorcast", "raw loop"
Line = dict[str, object]


def messages_of(drafts: Sequence[Draft]) -> list[raw.Message]:
    """The same bytes for the raw loop, encoded before."""
    entries = [
        entry
        for start in range(0, len(drafts), BATCH)
        for entry in prepare("bench", drafts[start : start + BATCH])
    ]
    return [(one.id, one.subject.replace("tc.bench.log", "raw"), one.payload) for one in entries]


async def throughput(rig: Rig, name: str, round_: int, count: int) -> Line:
    """As many events as go, in batches of 1000, one batch under way; until the last one is
    committed."""
    drafts = drafts_of(f"t{round_}", count)
    messages = messages_of(drafts) if name == RAW else []
    await asyncio.sleep(0.5)
    parts = rig.parts(name)
    cpu_s, began = rig.cpu_s(name), time.perf_counter()
    last = 0
    for start in range(0, count, BATCH):
        if name == RAW:
            last = await raw.publish(rig.nats, messages[start : start + BATCH])
        else:
            last = (await rig.log.append(drafts[start : start + BATCH]))[-1]
    acknowledged = time.perf_counter()
    ended = await rig.committed[name].wait_for(last)
    return {
        "what": "throughput",
        "contender": name,
        "events": count,
        "seconds": ended - began,
        "publish_s": acknowledged - began,
        "cpu_s": rig.cpu_s(name) - cpu_s,
        "cpu_us": {k: round((v - parts[k]) / count * 1e6) for k, v in rig.parts(name).items()},
        "rate": count / (ended - began),
    }


async def latency(rig: Rig, name: str, round_: int, rate: int, seconds: float) -> Line:
    """Single events at a steady rate: from the call that appends one to its commit."""
    count = int(rate * seconds)
    drafts = drafts_of(f"l{round_}", count)
    sent: list[float] = [0.0] * count
    seqs: list[int] = [0] * count
    if name == RAW:
        publisher = raw.Publisher(rig.nats)
        messages = messages_of(drafts)
        runner = asyncio.create_task(publisher.run())

        async def append(number: int) -> int:
            return await publisher.append(messages[number])
    else:
        writer = Writer(rig.log)
        runner = asyncio.create_task(writer.run())

        async def append(number: int) -> int:
            return (await writer.append([drafts[number]]))[-1]

    await asyncio.sleep(0.5)
    parts = rig.parts(name)
    await _offer(append, rate, sent, seqs)
    await rig.committed[name].wait_for(max(seqs))
    cpu_us = {k: round((v - parts[k]) / count * 1e6) for k, v in rig.parts(name).items()}
    runner.cancel()
    taken = sorted(_latencies(rig.committed[name], sent, seqs))
    return {
        "what": "latency",
        "contender": name,
        "events": count,
        "seconds": seconds,
        "cpu_us": cpu_us,
        "commits": len({at for at, seq in rig.committed[name].seen if seq >= min(seqs)}),
        "p50_ms": statistics.median(taken) * 1e3,
        "p99_ms": taken[int(0.99 * count)] * 1e3,
    }


async def _offer(
    append: Callable[[int], Awaitable[int]], rate: int, sent: list[float], seqs: list[int]
) -> None:
    """Calls `append` at the rate, whatever the answers take."""

    async def one(number: int) -> None:
        seqs[number] = await append(number)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        number = 0
        while number < len(sent):
            due = min(len(sent), int((time.perf_counter() - began) * rate) + 1)
            for at in range(number, due):
                sent[at] = time.perf_counter()
                tasks.create_task(one(at))
            number = due
            await asyncio.sleep(0.001)


def _latencies(commits: Commits, sent: Sequence[float], seqs: Sequence[int]) -> list[float]:
    found: list[float] = []
    moments = iter(commits.seen)
    at, committed = next(moments)
    for began, seq in sorted(zip(sent, seqs, strict=True), key=lambda pair: pair[1]):
        while committed < seq:
            at, committed = next(moments)
        found.append(at - began)
    return found


async def registrations(rig: Rig, turn: int, count: int) -> Line:
    """Artifacts with their first replica, as a mover registers them: decided on its own view,
    appended as one, seen in its view again."""
    follower, writer = Follower(rig.log), Writer(rig.log)
    runners = [asyncio.create_task(part.run()) for part in (follower, writer)]
    await follower.wait_for(await rig.log.last_seq(), 60)

    async def one(number: int) -> None:
        await execute(writer, follower, registration(f"r{turn}-{number}"), actor=ACTOR)

    seconds = await _in_flight(one, count)
    for runner in runners:
        runner.cancel()
    return {"what": "registrations", "contender": OURS, "count": count, "seconds": seconds,
            "rate": count / seconds}  # fmt: skip


async def moves(rig: Rig, turn: int, count: int) -> Line:
    """Keys moved through the API, each compared and set: from the request to its answer."""
    first, second = (artifact_of(f"m{turn}-{number}") for number in range(2))
    follower = Follower(rig.log)
    runner = asyncio.create_task(follower.run())
    for number in range(2):
        await execute(rig.log, follower, registration(f"m{turn}-{number}"), actor=ACTOR)
    client = ControlPlane(rig.nats_url, "bench", "user:ada@bench", Position(), timeout_s=30)
    at: dict[int, str | None] = dict.fromkeys(range(IN_FLIGHT))

    async def one(number: int) -> None:
        key = number % IN_FLIGHT
        target = second if at[key] == first else first
        move = MoveKey(key=Key(f"move-{turn}-{key}"), artifact=target, expect=at[key])
        await client.execute(move)
        at[key] = target

    seconds = await _in_flight(one, count)
    runner.cancel()
    await client.aclose()
    return {"what": "moves", "contender": OURS, "count": count, "seconds": seconds,
            "rate": count / seconds}  # fmt: skip


async def _in_flight(one: Callable[[int], Awaitable[None]], count: int) -> float:
    """The seconds that all calls take, 64 at a time; calls 64 apart never overlap."""

    async def lane(first: int) -> None:
        for number in range(first, count, IN_FLIGHT):
            await one(number)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for first in range(IN_FLIGHT):
            tasks.create_task(lane(first))
    return time.perf_counter() - began


async def resolves(rig: Rig, turn: int, count: int) -> Line:
    """A key to its artifact in the process's own view of the log."""
    follower = Follower(rig.log)
    runner = asyncio.create_task(follower.run())
    await follower.wait_for(await rig.log.last_seq(), 60)
    keys = list(follower.view.keys)
    taken = []
    for number in range(count):
        key = keys[number * 7919 % len(keys)]
        began = time.perf_counter()
        resolve_artifact(follower.view, key)
        taken.append(time.perf_counter() - began)
    runner.cancel()
    taken.sort()
    return {"what": "resolves", "contender": OURS, "count": count, "seconds": sum(taken),
            "keys": len(keys), "p50_us": statistics.median(taken) * 1e6,
            "p99_us": taken[int(0.99 * count)] * 1e6}  # fmt: skip
