"""What roll-outs ask the control plane, and what they make of its answers."""

from types import SimpleNamespace

import pytest

from samples import BEGIN, artifact_id
from tensorcast.client.position import Position
from tensorcast.client.rollouts import AsyncRolloutCalls
from tensorcast.schema.api import ArtifactInfo, EngineInfo, KeyInfo
from tensorcast.schema.api_plans import PlanInfo, StepInfo
from tensorcast.schema.commands import MoveKey
from tensorcast.schema.errors import Conflict, InvalidArgument, NotFound
from tensorcast.schema.plans import MapStep, MoveKeysStep, all_steps
from tensorcast.schema.rollouts import Rolling, RolloutLimits

OLD, NEW = artifact_id("old"), artifact_id("new")


class Api:
    """A control plane with two engines, and a key that points to the old weights."""

    def __init__(self):
        self.keys = {"p": OLD, "p@1": OLD, "p@2": NEW}
        self.moves = dict.fromkeys(self.keys, 1)
        self.before_read = []
        self.plan_list = ()
        self.submitted = []
        self.serves = {}
        self.dedup_ids = []
        self.taken = ()
        self.executed = ()

    async def key(self, key):
        if self.before_read:
            self.before_read.pop(0)()
        if key not in self.keys:
            raise NotFound(f"There is no key {key}.")
        return KeyInfo(key=key, artifact=self.keys[key], version=self.moves[key])

    async def artifact(self, what):
        found = self.keys.get(what, what)
        keys = tuple(key for key, artifact in self.keys.items() if artifact == found)
        return ArtifactInfo(
            id=found,
            kind="weights",
            state="sealed",
            bytes=1,
            tensors=1,
            labels={},
            keys=keys,
            replicas=(),
            pinned=False,
            leases=0,
            sealed_at=BEGIN,
            seq=1,
        )

    async def artifact_id(self, what):
        return (await self.artifact(what)).id

    async def expected(self, what):
        return what

    async def engines(self):
        return tuple(self._engine(name, name[-1]) for name in ("e2", "e1", "x1"))

    def _engine(self, name, number):
        version = self.serves.get(name, "p@1" if name.startswith("e") else "other@1")
        return EngineInfo(
            engine=name,
            kind="test",
            state="up",
            node=f"n{number}",
            model="",
            url="",
            version=version,
            artifact=OLD,
            since=BEGIN,
            life="1",
            labels={},
            registered_at=BEGIN,
            seq=1,
        )

    async def plans(self, *, label=""):
        return self.plan_list

    async def plan(self, name):
        return next((one for one in self.plan_list if one.id == name), plan(name))

    async def submit_plan(self, spec, *, dedup_id=""):
        if dedup_id in self.taken:
            raise Conflict("It is there already, and is another one.")
        self.dedup_ids.append(dedup_id)
        self.submitted.append(spec)
        return "plan-new"

    async def execute(self, command, *further):
        self.executed = (command, *further)


class Client(AsyncRolloutCalls):
    def __init__(self):
        self.api = Api()
        self.position = Position()


def plan(name, state="succeeded", **changes):
    known = {"id": name, "name": "p@2 roll-out", "state": state, "actor": "user:x", "seq": 1}
    labels = {"rollout": "p", "version": "p@2", "previous": "p@1"}
    return PlanInfo(**(known | {"labels": labels, "submitted_at": BEGIN} | changes))


async def test_engines_that_serve_the_name_are_its_members():
    client = Client()
    run = await client.roll_out("p@2", strategy=Rolling())
    assert run.id == "plan-new"
    steps = {step.id: step for step in all_steps(client.api.submitted[0].steps)}
    assert steps["stage"].items == ("e1", "e2")
    (move,) = steps["move"].moves
    assert (move.key, move.artifact, move.expect) == ("p", NEW, OLD)
    spec = await client.plan_roll_out("p@2", engines=["x1"], parts={"p.a": NEW, "p.b": NEW})
    steps = {step.id: step for step in all_steps(spec.steps)}
    assert [one.expect for one in steps["move"].moves] == ["absent", "absent"]
    assert "late" not in steps
    (stage,) = (step for step in spec.steps if isinstance(step, MapStep) and step.id == "stage")
    assert stage.items == ("x1",)


async def test_what_cannot_be_rolled_out():
    client = Client()
    with pytest.raises(InvalidArgument, match="is no version"):
        await client.roll_out("p")
    with pytest.raises(NotFound, match="No engine 'e9'"):
        await client.roll_out("p@2", engines=["e9"])
    client.api.plan_list = (plan("plan-1", "paused"),)
    with pytest.raises(Conflict, match="is under way: p@2"):
        await client.roll_out("p@2")
    assert client.api.submitted == []
    client = Client()
    with pytest.raises(InvalidArgument, match=r"Rolling cannot be so: expected `int` >= 1"):
        await client.roll_out("p@2", strategy=Rolling(at_once=0))
    with pytest.raises(InvalidArgument, match=r"RolloutLimits cannot be so: .*stage_s"):
        await client.roll_out("p@2", limits=RolloutLimits(stage_s=0))


async def test_of_two_at_one_moment_there_is_one():
    client, other = Client(), Client()
    await client.roll_out("p@2")
    await other.roll_out("p@2")
    assert client.api.dedup_ids == other.api.dedup_ids
    client.api.plan_list = (plan("plan-1", "failed"),)
    await client.roll_out("p@2")
    assert client.api.dedup_ids[1] != client.api.dedup_ids[0]
    other.api.taken = other.api.dedup_ids
    with pytest.raises(Conflict, match="Another roll-out of p has just begun"):
        await other.roll_out("p@2")


async def test_undo_goes_back_to_what_the_keys_pointed_to():
    client = Client()
    with pytest.raises(NotFound, match="There was no roll-out"):
        await client.undo_roll_out("p")
    moves = [{"key": "p", "artifact": NEW, "previous": OLD}]
    done = {"kind": "move_keys", "status": "succeeded", "outputs": {"moves": moves}}
    moved = StepInfo(id="switch/move", **done)
    client.api.keys["p"] = NEW
    client.api.plan_list = (plan("plan-1", steps=(moved,)), plan("plan-0"))
    await client.undo_roll_out("p")
    (spec,) = client.api.submitted
    assert spec.labels["version"] == "p@1"
    (move,) = next(s for s in all_steps(spec.steps) if isinstance(s, MoveKeysStep)).moves
    assert (move.artifact, move.expect) == (OLD, NEW)


async def test_an_undo_is_not_undone():
    client = Client()
    moves = [{"key": "p", "artifact": NEW, "previous": OLD}]
    done = {"kind": "move_keys", "status": "succeeded", "outputs": {"moves": moves}}
    rolled_out = plan("plan-1", steps=(StepInfo(id="switch/move", **done),))
    client.api.plan_list = (rolled_out,)
    await client.undo_roll_out("p")
    labels = client.api.submitted[0].labels
    client.api.plan_list = (plan("plan-2", labels=labels), rolled_out)
    with pytest.raises(Conflict, match="p@2 was taken back to p@1 already") as caught:
        await client.undo_roll_out("p")
    assert "tcctl rollout start p@2" in caught.value.hint
    client.api.plan_list = (plan("plan-2", "running", labels=labels), rolled_out)
    with pytest.raises(Conflict, match="p@2 is being taken back to p@1"):
        await client.undo_roll_out("p")
    client.api.plan_list = (plan("plan-2", "failed", labels=labels), rolled_out)
    await client.undo_roll_out("p")  # what could not be taken back still can
    assert [one.labels["version"] for one in client.api.submitted] == ["p@1", "p@1"]
    await client.roll_out("p@2")
    client.api.plan_list = (
        plan("plan-3", steps=rolled_out.steps),
        plan("plan-2", labels=labels),
        rolled_out,
    )
    await client.undo_roll_out("p")  # a roll-out after an undo is one like any other


async def test_undo_of_one_that_moved_no_key_stays_with_what_is_there():
    client = Client()
    spec = await client.plan_roll_out("p@2")
    client.api.plan_list = (plan("plan-1", "failed", spec=spec),)
    with pytest.raises(NotFound, match="nothing to undo: the roll-out of p@2 failed"):
        await client.undo_roll_out("p")
    client.api.serves = {"e1": "p@2"}  # it could not go back
    await client.undo_roll_out("p")
    (again,) = client.api.submitted
    (move,) = next(s for s in all_steps(again.steps) if isinstance(s, MoveKeysStep)).moves
    assert (again.labels["version"], move.artifact) == ("p@1", OLD)


async def test_keys_move_in_one_request():
    client = Client()
    await client.move_keys({"p": NEW, "q": NEW, "r": NEW}, expect={"r": OLD, "q": None})
    assert client.api.executed == (
        MoveKey(key="p", artifact=NEW, expect=OLD),
        MoveKey(key="q", artifact=NEW, expect=None),
        MoveKey(key="r", artifact=NEW, expect=OLD),
    )
    with pytest.raises(InvalidArgument):
        await client.move_keys({})


async def test_keys_are_read_as_of_one_moment():
    client = Client()
    api = client.api
    api.keys |= {"a": OLD, "b": OLD}
    api.moves |= {"a": 1, "b": 1}

    def move():
        api.keys |= {"a": NEW, "b": NEW}
        api.moves |= {"a": 2, "b": 2}

    api.before_read = [lambda: None, move]
    assert await client.read_keys(["a", "b", "none"]) == {"a": NEW, "b": NEW, "none": None}

    def keep_moving():
        api.moves["a"] += 1

    api.before_read = [keep_moving] * 1000
    with pytest.raises(Conflict, match="all the time"):
        await client.read_keys(["a"])


def test_the_facade_has_them_all():
    from tensorcast.client import Client as Waiting

    named = [name for name in vars(AsyncRolloutCalls) if not name.startswith("_")]
    assert [name for name in named if not hasattr(Waiting, name)] == []
    assert SimpleNamespace(n=len(named)).n >= 6
