"""The log through crashes of its server: what was acknowledged is there once, readers go on."""

from __future__ import annotations

import asyncio
import contextlib
import re
import uuid
from contextlib import aclosing
from datetime import timedelta

import nats
import pytest

from conformance.log import cordoned, draft, read_until
from tensorcast.log.follower import Follower
from tensorcast.log.identity import now
from tensorcast.log.jetstream import JetStreamCursors, JetStreamLog, connect_log
from tensorcast.log.writer import Writer
from tensorcast.schema.codec import decode
from tensorcast.schema.errors import Corrupt, InvalidArgument, PermissionDenied, Unavailable
from tensorcast.schema.ids import Seq


@pytest.fixture
async def log(nats_server):
    log = await connect_log(nats_server.url, "c", name="test")
    yield log
    await log.aclose()


async def restart(nats_server, *, forget: bool = False) -> None:
    await asyncio.to_thread(nats_server.kill)
    if forget:
        nats_server.forget()
    await asyncio.sleep(0.3)
    # Processes are started by the main thread: they die with the thread that starts them.
    nats_server.start()


async def until(predicate) -> None:
    async with asyncio.timeout(20):
        while not predicate():  # noqa: ASYNC110 - polls what has no event of its own
            await asyncio.sleep(0.01)


async def until_connected(log: JetStreamLog) -> None:
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(Unavailable):
                await log.last_seq()
                return
            await asyncio.sleep(0.05)


async def test_what_was_acknowledged_is_there_once(nats_server, log):
    """Appends go on while the server is killed again and again; none is lost, none comes twice."""
    acknowledged: dict[str, int] = {}
    stop = asyncio.Event()

    async def produce(name: str, writer: Writer) -> None:
        number = 0
        while not stop.is_set():
            drafts = [draft(cordoned(f"{name}-{number}-{part}"), 0) for part in range(3)]
            seqs = await writer.append(drafts)
            acknowledged.update(zip((one.id for one in drafts), seqs, strict=True))
            number += 1

    writer = Writer(log)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(writer.run())
        producers = [group.create_task(produce(f"p{index}", writer)) for index in range(8)]
        for _ in range(3):
            before = len(acknowledged)
            await restart(nats_server)
            await until(lambda goal=before + 100: len(acknowledged) >= goal)
        stop.set()
        await asyncio.wait(producers)
        running.cancel()
    last = await log.last_seq()
    stored = [decode(one.payload, one.seq) for one in await read_until(log, last)]
    assert {one.id: one.seq for one in stored} == acknowledged
    assert len(stored) == last


async def test_a_reader_goes_on_after_a_crash(nats_server, log):
    got: list[int] = []

    async def read() -> None:
        async with aclosing(log.read(after=Seq(0), batch_max=7)) as batches:
            async for batch in batches:
                got.extend(one.seq for one in batch)

    task = asyncio.create_task(read())
    for round_number in range(1, 4):
        await log.append([draft(cordoned(f"n{number}")) for number in range(50)])
        await until(lambda goal=round_number * 50: len(got) >= goal)
        await restart(nats_server)
        await until_connected(log)
    task.cancel()
    assert got == list(range(1, 151))


async def test_an_append_during_an_outage_says_so_at_once(nats_server, log):
    waiting = asyncio.ensure_future(log.append([draft(cordoned("n1"))]))
    nats_server.kill()
    with contextlib.suppress(Unavailable):
        await waiting
    await until(lambda: not log.nats.is_connected)
    async with asyncio.timeout(1):
        with pytest.raises(Unavailable):
            await log.append([draft(cordoned("n2"))])
    nats_server.start()
    await until_connected(log)
    await log.append([draft(cordoned("n3"))])


async def test_a_log_that_was_made_anew_is_noticed_by_its_readers(nats_server, log):
    await log.append([draft(cordoned(f"n{number}")) for number in range(3)])
    follower = Follower(log)
    task = asyncio.create_task(follower.run())
    await follower.wait_for(Seq(3), 5)
    await restart(nats_server, forget=True)
    other = await connect_log(nats_server.url, "c", name="test")
    await other.append([draft(cordoned(f"m{number}")) for number in range(9)])
    await other.aclose()
    with pytest.raises(Corrupt, match="made anew"):
        async with asyncio.timeout(20):
            await task
    assert follower.view.at == 3


async def test_a_log_that_is_gone_is_noticed(nats_server, log):
    await log.append([draft(cordoned("n1"))])
    await restart(nats_server, forget=True)
    with pytest.raises(Corrupt, match="gone"):
        async with asyncio.timeout(20):
            await read_until(log, 2)


async def test_a_long_history_is_read_in_bounded_batches(log):
    for start in range(0, 20_000, 1000):
        await log.append([draft(cordoned(f"n{number}")) for number in range(start, start + 1000)])
    slow: list[int] = []
    async with asyncio.timeout(60), aclosing(log.read(after=Seq(0), batch_max=500)) as batches:
        async for batch in batches:
            slow.extend(one.seq for one in batch)
            await asyncio.sleep(0.01)
            if slow[-1] == 20_000:
                break
    assert slow == list(range(1, 20_001))


async def test_consumers_are_given_back(nats_server, log):
    await log.append([draft(cordoned("n1"))])
    for _ in range(5):
        await read_until(log, 1)
    info = log.nats.jetstream().streams_info()
    async with asyncio.timeout(5):
        while sum(one.state.consumer_count for one in await info):
            await asyncio.sleep(0.05)
            info = log.nats.jetstream().streams_info()


async def test_a_repeat_is_found_when_the_server_has_forgotten_the_id(nats_server, log):
    client = log.nats.jetstream()
    config = (await client.stream_info("TC_c_LOG")).config
    await client.update_stream(config.evolve(duplicate_window=0.1))
    hours_ago = now() - timedelta(hours=3)
    journalled = [draft(cordoned("n1"), at=hours_ago), draft(cordoned("n2"), at=hours_ago)]
    decided = [draft(cordoned("m1"), 0), draft(cordoned("m1")), draft(cordoned("m2"), 0)]
    assert await log.append(journalled) == (1, 2)
    assert await log.append(decided) == (3, 4, 5)
    await log.append([draft(cordoned(name)) for name in ("n1", "n2", "m1", "m2")])
    await asyncio.sleep(0.5)
    assert await log.append(journalled) == (1, 2)
    assert await log.append(journalled[1:]) == (2,)
    assert await log.append(decided) == (3, 4, 5)
    assert await log.append(decided[2:]) == (5,)
    assert await log.last_seq() == 9


async def test_the_log_can_only_grow(log):
    await log.append([draft(cordoned("n1"))])
    jetstream = log.nats.jetstream()
    with pytest.raises(nats.js.errors.APIError):
        await jetstream.delete_msg("TC_c_LOG", 1)
    with pytest.raises(nats.js.errors.APIError):
        await jetstream.purge_stream("TC_c_LOG")


async def test_an_object_that_could_lose_events_is_no_log(nats_server):
    client = await nats.connect(nats_server.url)
    await client.jetstream().add_stream(
        name="TC_c_LOG", subjects=["tc.c.log.>"], max_msgs=10, allow_atomic=True
    )
    await client.close()
    with pytest.raises(InvalidArgument, match=r"drops old events.*can be deleted"):
        await connect_log(nats_server.url, "c", name="test")


async def test_many_processes_make_one_log(nats_server):
    logs = await asyncio.gather(
        *(connect_log(nats_server.url, "c", name=f"test-{number}") for number in range(5))
    )
    assert len({log.created for log in logs}) == 1
    await asyncio.gather(*(JetStreamCursors(log).store("r", Seq(1)) for log in logs))
    for log in logs:
        await log.aclose()


async def test_a_server_that_is_not_there_is_named_without_its_password():
    with pytest.raises(Unavailable) as refused:
        await connect_log("nats://ada:hidden@127.0.0.1:9", "c", name="test", timeout_s=0.5)
    assert "127.0.0.1:9" in str(refused.value)
    assert "hidden" not in str(refused.value)


async def test_a_wrong_password_is_refused_in_time(nats_server):
    url = re.sub(":secret@", ":wrong@", nats_server.url)
    with pytest.raises(PermissionDenied, match="refuses"):
        await connect_log(url, "c", name="test", timeout_s=20)


async def test_two_clusters_share_a_server(nats_server):
    logs = [
        await connect_log(nats_server.url, f"c-{uuid.uuid4().hex[:6]}", name="test")
        for _ in range(2)
    ]
    await logs[0].append([draft(cordoned("n1"), 0)])
    assert [await log.last_seq() for log in logs] == [1, 0]
    for log in logs:
        await log.aclose()
