"""Signals over real NATS and real Postgres: emitted, read, resumed, whoever is killed."""

from __future__ import annotations

import asyncio
import math
import threading
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import msgspec
import pytest

import tensorcast as tc
from controlplanes import CLUSTER, ControlPlane
from tensorcast.client import Context
from tensorcast.schema.errors import Conflict, InvalidArgument, NotFound, Unavailable

PATIENCE_S = 20.0


@pytest.fixture
async def plane(tmp_path, nats_server, postgres_url):
    plane = ControlPlane(tmp_path, nats_server.url, postgres_url)
    await plane.start()
    yield plane
    plane.end()


@pytest.fixture
def context(nats_server):
    return Context(cluster=CLUSTER, nats_url=nats_server.url)


@asynccontextmanager
async def open_client(context):
    async with tc.connect_async(context, timeout=4.0) as client:
        yield client


async def take(signals, count):
    """The next signals, and that there are no more right after them."""
    found = [await signals.next(PATIENCE_S) for _ in range(count)]
    assert None not in found, found
    assert await signals.next(0.2) is None
    return found


def numbers(signals):
    return [signal.data["n"] for signal in signals]


async def emit_all(client, topic, values):
    for value in values:
        await client.emit(topic, {"n": value})


async def test_a_signal_reaches_who_listens(plane, context):
    async with open_client(context) as client:
        async with client.signals("weights.*") as signals:
            done = await client.emit("weights.published", {"key": "llama@1", "sizes": [1, 2]})
            await client.emit("engine.load.e1", {"running": 3})
            (signal,) = await take(signals, 1)
        assert (signal.seq, signal.id) == (done.seq, done.id)
        assert signal.topic == "weights.published"
        assert signal.data == {"key": "llama@1", "sizes": [1, 2]}
        assert signal.actor.startswith("user:")
        await signal.ack()  # nothing to do, and no harm
        topics = await client.api.topics()
        assert [(one.topic, one.emitted) for one in topics] == [
            ("engine.load.e1", 1),
            ("weights.published", 1),
        ]
        assert topics[0].data == {"running": 3}
        (event,) = await client.api.audit(tc_audit("signal.emitted", "weights.published"))
        assert event.seq == done.seq


def tc_audit(kind, what):
    from tensorcast.schema.api import AuditQuery

    return AuditQuery(type=kind, what=what)


async def test_readers_begin_where_they_say(plane, context):
    async with open_client(context) as client:
        await emit_all(client, "a.x", range(2))
        await emit_all(client, "a.y", range(10, 12))
        middle = datetime.now(UTC)
        third = await client.emit("a.x", {"n": 2})

        async def read(start, count):
            async with client.signals("a.>", start=start) as signals:
                return numbers(await take(signals, count))

        assert await read("first", 5) == [0, 1, 10, 11, 2]
        assert await read("last", 2) == [11, 2]
        assert await read(int(third.seq), 1) == [2]
        assert await read(middle, 1) == [2]
        assert await read("new", 0) == []


async def test_what_a_reader_had_fetched_ahead_is_there_for_the_next_one_at_once(plane, context):
    """Nobody waits for an hour: how long a signal may take to be acknowledged."""
    async with open_client(context) as client:
        async with client.signals("job.*", durable="ahead", ack_within=3600) as signals:
            await emit_all(client, "job.new", range(40))
            await (await signals.next(PATIENCE_S)).ack()
        async with client.signals("job.*", durable="ahead") as signals:
            assert numbers([await signals.next(PATIENCE_S) for _ in range(20)])[::19] == [1, 20]
            for n in range(2):
                assert (await signals.next(PATIENCE_S)).data["n"] == 21 + n
        async with open_client(context) as careless:  # it closes its client, not the reader
            signals = careless.signals("job.*", durable="ahead")
            assert (await signals.next(PATIENCE_S)).data["n"] == 23
        async with client.signals("job.*", durable="ahead") as signals:
            found = [await signals.next(PATIENCE_S) for _ in range(16)]
            assert numbers(found) == list(range(24, 40))


async def test_what_was_never_given_is_no_try(plane, context):
    async with open_client(context) as client:
        await emit_all(client, "job.new", (-1,))
        for _ in range(3):
            async with client.signals("job.*", durable="d", dead_after=1, start="first") as signals:
                await asyncio.sleep(0)
                assert signals.durable == "d"
        async with client.signals("job.*", durable="d", dead_after=1) as signals:
            assert (await signals.next(PATIENCE_S)).data["n"] == -1


async def test_a_reader_of_calls_that_was_forgotten_is_made_anew(plane, context):
    async with open_client(context) as client, client.calls("e1") as calls:
        await client.emit("engine.call.e1", {"call": "1"})
        call = await calls.next(PATIENCE_S)
        await call.drop()
        await client.forget_reader("calls-e1")
        await client.emit("engine.call.e1", {"call": "2"})
        assert (await calls.next(PATIENCE_S)).id == "2"


async def test_a_durable_reader_goes_on_where_it_stopped(plane, context):
    async with open_client(context) as client:
        await client.emit("job.old", {"n": -1})
        async with client.signals("job.*", durable="rollout-0", ack_within=1.0) as signals:
            await emit_all(client, "job.new", range(4))
            for signal in await take(signals, 4):
                if signal.data["n"] < 2:
                    await signal.ack()
        await emit_all(client, "job.new", (4,))
        async with client.signals("job.*", durable="rollout-0") as signals:
            # 2 and 3 were never acknowledged: they come again, when their time is over.
            found = [await signals.next(PATIENCE_S) for _ in range(3)]
            assert sorted(numbers(found)) == [2, 3, 4]
            assert sorted(signal.delivery for signal in found) == [1, 2, 2]
            for signal in found:
                await signal.ack()
            assert await signals.next(0.3) is None
        (info,) = await client.signal_readers()
        assert (info.name, info.pattern, info.waiting) == ("rollout-0", "job.*", 0)
        with pytest.raises(Conflict, match="reads other topics"):
            await client.signals("other.*", durable="rollout-0").open()
        await client.forget_reader("rollout-0")
        assert await client.signal_readers() == ()
        with pytest.raises(NotFound, match="rollout-0"):
            await client.forget_reader("rollout-0")


async def test_what_is_given_back_comes_again(plane, context):
    async with open_client(context) as client, client.signals("t", durable="d") as signals:
        await client.emit("t", {"n": 1})
        (signal,) = await take(signals, 1)
        await signal.retry()
        (again,) = await take(signals, 1)
        assert (again.seq, again.delivery) == (signal.seq, 2)
        await again.ack()
        assert await signals.next(0.3) is None


async def test_nothing_is_lost_when_the_servers_are_killed(plane, context, nats_server):
    """Emits through crashes of NATS and of the control plane; each signal that was acknowledged to
    its emitter reaches both readers."""
    async with open_client(context) as client:
        plain = await client.signals("s.>", start="first").open()
        durable = await client.signals("s.>", durable="all", start="first").open()
        sent = [(await client.emit("s.a", {"n": 0})).seq]
        assert numbers(await take(plain, 1)) == [0]

        nats_server.kill()
        with pytest.raises((Unavailable, tc.Timeout)):
            await client.emit("s.a", {"n": -1}, timeout=0.5)
        nats_server.start()
        sent.append((await _emit_surely(client, 1)).seq)
        plane.kill()
        with pytest.raises(Unavailable):
            await client.emit("s.a", {"n": -2}, timeout=0.5)
        waiting = asyncio.create_task(client.emit("s.a", {"n": 2}))
        await asyncio.sleep(4.0)
        assert not waiting.done(), "it waits for the control plane that comes back"
        await plane.start()
        async with asyncio.timeout(PATIENCE_S):
            sent.append((await waiting).seq)

        for reader in (plain, durable):
            got = await _read_until(reader, sent[-1])
            assert set(sent) - set(got) == (set() if reader is durable else {sent[0]})
            await reader.aclose()


async def test_who_waits_for_the_first_signal_gets_it_after_a_crash(plane, context, nats_server):
    """The log is empty, and the server forgets readers without a name when it dies."""
    async with open_client(context) as client, client.signals("s.>") as signals:
        assert await signals.next(0.1) is None
        nats_server.kill()
        nats_server.start()
        sent = await _emit_surely(client, 7)
        signal = await signals.next(PATIENCE_S)
        assert (signal.seq, signal.data) == (sent.seq, {"n": 7})


async def test_a_reader_that_is_forgotten_while_it_reads_is_told(plane, context):
    async with open_client(context) as client, client.signals("s", durable="d") as signals:
        await client.forget_reader("d")
        with pytest.raises(NotFound, match="forgotten"):
            await signals.next(PATIENCE_S)


async def _emit_surely(client, number):
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await client.emit("s.a", {"n": number})
            except (Unavailable, tc.Timeout):
                await asyncio.sleep(0.1)


async def _read_until(reader, seq):
    found = []
    while not found or found[-1] < seq:
        signal = await reader.next(PATIENCE_S)
        assert signal is not None, found
        found.append(signal.seq)
        await signal.ack()
    return found


async def test_a_reader_that_dies_leaves_its_signals_to_the_next(plane, context):
    """The connection breaks off without a word, as when the process is killed."""
    async with open_client(context) as client:
        doomed = tc.connect_async(context)
        signals = await doomed.signals("t", durable="d", ack_within=0.5).open()
        await emit_all(client, "t", range(3))
        first = await signals.next(PATIENCE_S)
        await first.ack()
        nats = await doomed.api.connect()
        await nats.flush()
        nats._transport._io_writer.transport.abort()  # no word to the server
        async with client.signals("t", durable="d") as heir:
            found = [await heir.next(PATIENCE_S) for _ in range(2)]
            assert sorted(numbers(found)) == [1, 2]
        await doomed.aclose()


async def test_a_signal_that_is_asked_for_twice_is_emitted_once(plane, context, monkeypatch):
    async with open_client(context) as client:
        monkeypatch.setattr("tensorcast.client.signal_calls.new_event_id", lambda: EVENT)
        first = await client.emit("t", {"n": 1})
        again = await client.emit("t", {"n": 1})
        assert first == again
        (topic,) = await client.api.topics("t")
        assert topic.emitted == 1


EVENT = "01941f29-7c00-7000-8000-000000000003"


async def test_many_emitters_share_appends(plane, context):
    """One topic for all: nobody is refused for what the others say."""
    async with open_client(context) as client, client.signals("t") as signals:
        done = await asyncio.gather(*(client.emit("t", {"n": i}) for i in range(200)))
        found = [await signals.next(PATIENCE_S) for _ in done]
        assert [one.seq for one in found] == sorted(one.seq for one in done)
        assert sorted(numbers(found)) == list(range(200))


async def test_what_cannot_be_a_signal_is_refused(plane, context):
    async with open_client(context) as client:
        for topic in ("", "a..b", "a.*", "ä", "a b", "a\r\nb"):
            with pytest.raises(InvalidArgument, match="not a topic"):
                await client.emit(topic)
        no_json = ({"a": math.nan}, {"a": math.inf}, {"a": b"x"}, {"a": {1}}, {"a": {1: 2}})
        for data in ([1], "text", {"a": object()}, {"a": "x" * 70_000}, {"a": 1 << 64}, *no_json):
            with pytest.raises(InvalidArgument):
                await client.emit("t", data)
        for start in ("yesterday", 0, -1, True, datetime(2030, 1, 1)):
            with pytest.raises(InvalidArgument, match="cannot be read from"):
                client.signals("t", start=start)
        with pytest.raises(InvalidArgument, match="5 of 1 members can never acknowledge"):
            await client.barrier("t", "1", members=["a"], count=5)
        with pytest.raises(InvalidArgument, match="'ab' are no members"):
            await client.barrier("t", "1", members="ab")
        with pytest.raises(InvalidArgument, match="name of a reader"):
            client.signals("t", durable="no spaces")
        assert await client.api.topics() == ()


async def test_events_of_a_newer_release_are_skipped(plane, context):
    newer = {"id": EVENT, "type": "signal.sung", "v": 1, "at": "2030-01-01T00:00:00Z"}
    async with (
        open_client(context) as client,
        client.signals("t", durable="d", ack_within=0.5) as signals,
    ):
        nats = await client.api.connect()
        payload = msgspec.json.encode(newer | {"actor": "user:ada", "data": {}})
        await nats.request(f"tc.{CLUSTER}.log.signal.t", payload)
        await client.emit("t", {"n": 1})
        (signal,) = await take(signals, 1)
        await signal.ack()
        assert await signals.next(1.0) is None


async def test_the_waiting_client_reads_too(plane, context):
    def work():
        with tc.connect(context) as client, client.signals("t.*", durable="d") as signals:
            emitter = threading.Thread(
                target=lambda: [client.emit("t.a", {"n": i}) for i in range(3)]
            )
            emitter.start()
            found = []
            for signal in signals:
                found.append((signal.topic, signal.data["n"], signal.delivery))
                signal.ack()
                if len(found) == 3:
                    break
            emitter.join()
            assert signals.next(timeout=0.2) is None
            return found

    assert await asyncio.to_thread(work) == [("t.a", i, 1) for i in range(3)]


async def test_signals_survive_a_rebuild_of_the_read_models(plane, context, postgres_url):
    async with open_client(context) as client:
        await emit_all(client, "a", range(3))
        plane.end()
        await plane.start()
        (topic,) = await client.api.topics("a")
        assert (topic.emitted, topic.data) == (3, {"n": 2})


async def test_data_must_have_the_shape_of_its_topic(plane, context):
    async with open_client(context) as client:
        shape = {"type": "object", "properties": {"step": {"type": "integer"}}}
        await client.define_topic("train.*", {**shape, "required": ["step"]})
        with pytest.raises(InvalidArgument, match=r"data\.step is missing"):
            await client.emit("train.a", {})
        await client.emit("train.a", {"step": 1})
        with pytest.raises(InvalidArgument, match=r"data\.key is missing"):
            await client.emit("weights.published", {})
        await client.define_topic("train.*", None)
        await client.emit("train.a", {})
        assert await client.topic_shapes() == {}


async def test_what_is_given_in_vain_too_often_is_dead(plane, context):
    async with open_client(context) as client:
        options = {"durable": "worker", "dead_after": 2}
        async with client.signals("dead.>") as dead, client.signals("job", **options) as jobs:
            await client.emit("job", {"n": 1})
            for delivery in (1, 2):
                signal = await jobs.next(PATIENCE_S)
                assert signal.delivery == delivery
                await signal.retry()
            said = await dead.next(PATIENCE_S)  # nobody need read on for that
            assert await jobs.next(1.0) is None
            assert said.topic == "dead.worker"
            assert (said.data["seq"], said.data["data"]) == (signal.seq, {"n": 1})
            await client.emit("job", {"n": 2})
            signal = await jobs.next(PATIENCE_S)
            await signal.bury("it makes no sense")
            assert (await dead.next(PATIENCE_S)).data["reason"] == "it makes no sense"
            assert await jobs.next(0.5) is None


async def test_a_function_is_called_with_each_signal_again_when_it_raised(plane, context):
    seen = asyncio.Queue()

    async def take_one(signal):
        await seen.put((signal.data["n"], signal.delivery))
        if signal.delivery == 1 and signal.data["n"] == 2:
            raise ValueError("not now")

    async with (
        open_client(context) as client,
        client.listener("a.*", take_one, durable="caller"),
        asyncio.timeout(PATIENCE_S),
    ):
        await emit_all(client, "a.b", [1, 2])
        assert [await seen.get() for _ in range(3)] == [(1, 1), (2, 1), (2, 2)]


def _call_back_and_wait(context):
    with tc.connect(context) as client:
        got = threading.Event()
        with client.listener("a.*", lambda signal: got.set()):
            client.emit("a.b", {})
            assert got.wait(PATIENCE_S)
        client.acknowledge("installed", "policy@7", "e1")
        client.acknowledge("installed", "policy@6", "e2")
        client.acknowledge("installed", "policy@7", "e1")
        with pytest.raises(tc.Timeout, match=r"1 of 2 .*Missing: e2"):
            client.barrier("installed", "policy@7", members=["e1", "e2"], timeout=2.0)
        client.acknowledge("installed", "policy@7", "e2")
        return client.barrier("installed", "policy@7", count=2, timeout=PATIENCE_S)


async def test_a_function_in_a_thread_and_a_barrier(plane, context):
    assert await asyncio.to_thread(_call_back_and_wait, context) == ("e1", "e2")
