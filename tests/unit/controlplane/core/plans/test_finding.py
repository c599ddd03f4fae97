import pytest

from rollout_worlds import NEW, OLD, RolloutWorld
from tensorcast.controlplane.core.plans.finding import find_engines, serves
from tensorcast.schema.commands import RegisterEngine
from tensorcast.schema.errors import NotFound
from tensorcast.schema.ids import EngineId
from tensorcast.schema.plans import FindEngines


def find(world, **fields):
    step = FindEngines(id="s", **fields)
    values = {"weights": step.weights, **({"unless": step.unless} if step.unless else {})}
    return find_engines(world.view, step, values)


def test_engines_are_found_by_what_they_serve_and_by_their_labels():
    world = RolloutWorld(3)
    world.execute(RegisterEngine(engine=EngineId("e3"), life="1", ttl_s=15, labels={"pool": "rl"}))
    world.engines["e2"].serves = NEW
    world._tell(world.engines["e2"])
    assert find(world) == {"engines": ["e1", "e2", "e3"], "nodes": ["n1", "n2", "n3"]}
    assert find(world, weights="policy", unless=NEW)["engines"] == ["e1", "e3"]
    assert find(world, weights="policy", unless="policy@1")["engines"] == ["e2"]
    assert find(world, weights="other") == {"engines": [], "nodes": []}
    assert find(world, labels={"pool": "rl"})["engines"] == ["e3"]
    world.kill("e1")
    assert find(world, unless=OLD)["engines"] == ["e2"]
    with pytest.raises(NotFound):
        find(world, unless="nobody")


def test_a_version_belongs_to_its_name():
    engine = RolloutWorld(1).view.engines["e1"]
    assert serves(engine, "policy")
    assert serves(engine, "")
    assert not serves(engine, "pol")
