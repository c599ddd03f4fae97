from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from rigs import running_rig
from samples import artifact_id
from tensorcast.controlplane.services import api_engines
from tensorcast.controlplane.services.api import answer
from tensorcast.schema import api
from tensorcast.schema.api import parse_reply
from tensorcast.schema.commands import LeaveEngine, LoseEngine, RegisterEngine, ServeWeights
from tensorcast.schema.errors import InvalidArgument, NotFound
from tensorcast.schema.ids import EngineId, NodeId

A, B = artifact_id("a"), artifact_id("b")
BEGIN = datetime.now(UTC) - timedelta(hours=5)


def at(second):
    return BEGIN + timedelta(seconds=second)


def register(name="e1", life="one", **more):
    return RegisterEngine(engine=EngineId(name), life=life, kind="vllm", ttl_s=15.0, **more)


def serve(version, artifact, second, name="e1", life="one"):
    return ServeWeights(
        engine=EngineId(name), life=life, version=version, artifact=artifact, since=at(second)
    )


@pytest.fixture
async def rig():
    """An engine that has served two versions, and one that has left."""
    async with running_rig() as rig:
        await rig.execute(register(node=NodeId("n1"), url="http://h:1", model="llama"))
        await rig.execute(serve("m@1", A, 0))
        await rig.execute(serve("m@2", B, 60))
        await rig.execute(register("e2"))
        await rig.execute(LeaveEngine(engine=EngineId("e2"), life="one"))
        yield rig


async def ask(rig, verb, request, shape):
    return parse_reply(await answer(rig.desk, verb, msgspec.json.encode(request)), shape)


async def listed(rig, **filters):
    found = await ask(rig, "engine.list", api.Browse(**filters), tuple[api.EngineInfo, ...])
    return [one.engine for one in found]


async def weights(rig, engine="e1", moment=None):
    query = api.WeightsQuery(engine=engine, at=moment)
    return await ask(rig, "engine.weights", query, api.ServedInfo)


async def test_the_engines_that_run_are_listed_or_all(rig):
    assert await listed(rig) == ["e1"]
    assert await listed(rig, status="all") == ["e2", "e1"]
    assert await listed(rig, status="left") == ["e2"]
    assert await listed(rig, status="all", node="n1") == ["e1"]
    assert await listed(rig, status="all", limit=1) == ["e2"]
    for wrong in ({"status": "asleep"}, {"limit": 0}):
        with pytest.raises(InvalidArgument):
            await listed(rig, **wrong)


@pytest.mark.parametrize("name", ["e1", "http://h:1"])
async def test_one_is_shown_with_what_it_served(rig, name):
    found = await ask(rig, "engine.show", api.Show(what=name), api.EngineInfo)
    assert (found.engine, found.state, found.model) == ("e1", "up", "llama")
    assert (found.version, found.artifact, found.since) == ("m@2", B, at(60))
    assert [(one.version, one.since, one.until) for one in found.served] == [
        ("m@1", at(0), at(60)),
        ("m@2", at(60), None),
    ]


async def test_without_postgres_it_is_shown_without_its_past(rig):
    rig.history.away = True
    found = await ask(rig, "engine.show", api.Show(what="e1"), api.EngineInfo)
    assert (found.version, found.served) == ("m@2", ())


async def test_what_it_says_of_its_load_is_shown_while_it_lives(rig):
    def pulse(life):
        load = {"life": life, "load": {"cache_usage": 0.25}}
        rig.heartbeats.hear_engine(EngineId("e1"), msgspec.json.encode(load))

    async def load():
        return (await ask(rig, "engine.show", api.Show(what="e1"), api.EngineInfo)).load

    assert await load() == {}
    pulse("zero")
    assert await load() == {}
    pulse("one")
    assert await load() == {"cache_usage": 0.25}
    await rig.execute(LeaveEngine(engine=EngineId("e1"), life="one"))
    assert await load() == {}


async def test_which_weights_made_a_sample(rig):
    made = [await weights(rig, moment=at(second)) for second in (0, 59.9, 60, 100)]
    assert [(one.version, one.artifact) for one in made] == [
        *[("m@1", A)] * 2,
        *[("m@2", B)] * 2,
    ]
    assert (await weights(rig)).version == "m@2"
    await rig.execute(LoseEngine(engine=EngineId("e1"), life="one", last_seen=at(90)))
    assert (await weights(rig, moment=at(89))).version == "m@2"
    for moment in (at(-1), at(90), None):
        with pytest.raises(NotFound, match="served no weights"):
            await weights(rig, moment=moment)
    with pytest.raises(NotFound, match="served no weights"):
        await weights(rig, "e2")
    with pytest.raises(NotFound, match="no engine"):
        await weights(rig, "e3")
    with pytest.raises(InvalidArgument, match="no zone"):
        await weights(rig, moment=datetime(2030, 1, 1))


async def test_a_long_past_is_read_from_its_end(rig, monkeypatch):
    monkeypatch.setattr(api_engines, "PAGE_EVENTS", 4)
    for n in range(3, 12):
        await rig.execute(serve(f"m@{n}", A, 60 * n))
    for n in range(1, 12):
        second = 0 if n == 1 else 60 if n == 2 else 60 * n
        assert (await weights(rig, moment=at(second))).version == f"m@{n}"
    with pytest.raises(NotFound):
        await weights(rig, moment=at(-1))
