"""Moments, the state as it was, and what changed: over a log in memory."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from rigs import running_rig
from samples import artifact_id
from tensorcast.controlplane.services.api import answer
from tensorcast.log.identity import now
from tensorcast.schema import api
from tensorcast.schema.api import parse_reply
from tensorcast.schema.api_past import DiffInfo, DiffQuery, MomentInfo, MomentQuery
from tensorcast.schema.errors import InvalidArgument, NotFound
from tensorcast.schema.events import ArtifactPinned, KeyMoved, KeyRemoved
from tensorcast.schema.ids import Key, NodeId, Seq
from tensorcast.schema.work import Materialize
from worlds import World

A = artifact_id("a")


@pytest.fixture
async def rig():
    """1 node n1, 2 node n2, 3 a, 4 its replica on n1, 5 key k, 6 operation to n2, 7 engine, 8 a is
    pinned, 9 k is removed."""
    world = World()
    world.node("n1")
    world.node("n2")
    world.artifact("a", "n1")
    world.then(KeyMoved(key=Key("k"), artifact=A, previous=None, version=1))
    world.issue("op-0123456789", "n2", Materialize(artifact=A))
    world.engine("e1", node="n1")
    world.then(ArtifactPinned(artifact=A))
    world.then(KeyRemoved(key=Key("k"), previous=A, version=2))
    async with running_rig() as rig:
        await rig.replay(world.events)
        yield rig


async def ask(rig, verb, request, shape):
    return parse_reply(await answer(rig.desk, verb, msgspec.json.encode(request)), shape)


async def test_a_moment_is_an_event(rig):
    last = await ask(rig, "moment", MomentQuery(), MomentInfo)
    assert (last.seq, last.last_seq) == (9, 9)
    third = await ask(rig, "moment", MomentQuery(seq=Seq(3)), MomentInfo)
    assert third.seq == 3
    at_that_time = await ask(rig, "moment", MomentQuery(time=last.at), MomentInfo)
    assert at_that_time == last
    nothing = await ask(rig, "moment", MomentQuery(seq=Seq(0)), MomentInfo)
    assert (nothing.seq, nothing.at) == (0, None)
    early = MomentQuery(time=datetime(1999, 1, 1, tzinfo=UTC))
    assert (await ask(rig, "moment", early, MomentInfo)).seq == 0


@pytest.mark.parametrize("verb", ["moment", "replay", "diff"])
async def test_what_is_yet_to_come_is_refused(rig, verb):
    tomorrow = now() + timedelta(days=1)
    for seq, time in ((Seq(10), None), (Seq(-1), None), (None, tomorrow)):
        request = {
            "moment": MomentQuery(seq=seq, time=time),
            "replay": api.ReplayQuery(to_seq=seq, to_time=time),
            "diff": DiffQuery(since_seq=Seq(0), to_seq=seq, to_time=time),
        }[verb]
        with pytest.raises(InvalidArgument, match=r"yet|not a position"):
            await ask(rig, verb, request, object)
    soon = now() + timedelta(seconds=5)  # a client whose clock is ahead
    assert (await ask(rig, "moment", MomentQuery(time=soon), MomentInfo)).seq == 9


async def test_the_state_says_how_it_stands_to_the_present(rig):
    state = await ask(rig, "replay", api.ReplayQuery(to_seq=Seq(5)), api.ReplayInfo)
    assert (state.at_seq, state.last_seq) == (5, 9)
    assert state.at is not None
    nothing = {"operations": 0, "engines": 0, "plans": 0}
    assert state.totals == {"artifacts": 1, "keys": 1, "nodes": 2, **nothing}
    assert [one.key for one in state.keys] == ["k"]


async def test_the_state_of_a_key(rig):
    query = api.ReplayQuery(to_seq=Seq(5), kind="key", what="k")
    state = await ask(rig, "replay", query, api.ReplayInfo)
    assert ([one.id for one in state.artifacts], len(state.keys)) == ([A], 1)
    for seq in (4, 9):  # not yet, and no more
        query = api.ReplayQuery(to_seq=Seq(seq), kind="key", what="k")
        with pytest.raises(NotFound, match="no key 'k'"):
            await ask(rig, "replay", query, object)


async def test_of_many_the_last_changed_are_told(rig):
    query = api.ReplayQuery(to_seq=Seq(9), limit=1)
    state = await ask(rig, "replay", query, api.ReplayInfo)
    assert [one.node for one in state.nodes] == ["n2"]
    assert state.totals["nodes"] == 2


async def test_every_question_about_the_present_can_be_asked_of_the_past(rig):
    def show(what, at):
        return api.Show(what=what, at=Seq(at))

    assert (await ask(rig, "artifact.show", show("k", 7), api.ArtifactInfo)).pinned is False
    assert (await ask(rig, "artifact.show", show(A, 8), api.ArtifactInfo)).pinned is True
    with pytest.raises(NotFound):
        await ask(rig, "artifact.show", show("k", 9), object)
    key = await ask(rig, "key.show", show("k", 8), api.KeyInfo)
    assert (key.artifact, len(key.history)) == (A, 1)
    for verb, seq, count in (
        ("operation.list", 5, 0),
        ("operation.list", 6, 1),
        ("engine.list", 6, 0),
        ("engine.list", 7, 1),
        ("node.list", 1, 1),
        ("key.list", 8, 1),
        ("key.list", 9, 0),
        ("artifact.list", 2, 0),
    ):
        found = await ask(rig, verb, api.Browse(at=Seq(seq)), tuple[object, ...])
        assert len(found) == count, (verb, seq)
    node = await ask(rig, "node.show", show("n1", 3), api.NodeInfo)
    assert node.replicas == 0
    assert (await ask(rig, "engine.show", show("e1", 7), api.EngineInfo)).state == "up"
    with pytest.raises(InvalidArgument, match="no event 10 yet"):
        await ask(rig, "node.show", show("n1", 10), object)


async def test_what_changed_between_two_moments(rig):
    query = DiffQuery(since_seq=Seq(5), to_seq=Seq(9))
    info = await ask(rig, "diff", query, DiffInfo)
    assert (info.from_seq, info.to_seq, info.total) == (5, 9, 4)
    assert [(one.change, one.kind) for one in info.changes] == [
        ("changed", "artifact"),
        ("removed", "key"),
        ("added", "operation"),
        ("added", "engine"),
    ]
    about = msgspec.structs.replace(query, kind="key", what="k")
    assert [one.kind for one in (await ask(rig, "diff", about, DiffInfo)).changes] == ["key"]
    about = msgspec.structs.replace(query, kind="artifact", what="k")  # a key of it, then
    kinds = [one.kind for one in (await ask(rig, "diff", about, DiffInfo)).changes]
    assert kinds == ["artifact", "key", "operation"]
    few = await ask(rig, "diff", msgspec.structs.replace(query, limit=2), DiffInfo)
    assert (few.total, [one.seq for one in few.changes]) == (4, [8, 9])


async def test_differences_that_make_no_sense(rig):
    backwards = DiffQuery(since_seq=Seq(5), to_seq=Seq(4))
    with pytest.raises(InvalidArgument, match="after the second"):
        await ask(rig, "diff", backwards, object)
    query = DiffQuery(since_seq=Seq(1), to_seq=Seq(4), kind="galaxy", what="x")
    with pytest.raises(InvalidArgument, match="kind and its name"):
        await ask(rig, "diff", query, object)
    query = DiffQuery(since_seq=Seq(1), to_seq=Seq(4), kind="node", what=NodeId("n9"))
    with pytest.raises(NotFound):
        await ask(rig, "diff", query, object)
