"""The policies in examples/ are loaded as users load them, and do what they say."""

from pathlib import Path

import pytest

from samples import BEGIN
from tensorcast.controlplane.core.guard import Guard, Limits
from tensorcast.controlplane.services.policy_files import load_catalog
from tensorcast.schema.commands import EmitSignal, PinArtifact, RequestReplicas
from tensorcast.schema.engine_events import EngineServing
from tensorcast.schema.ids import EngineId, NodeId
from tensorcast.schema.work import Materialize
from worlds import World

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "policies"
CATALOG = load_catalog((), [EXAMPLES])


def react(world, name, **parameters):
    kind = CATALOG.find(name)
    policy = kind.make(kind.parameters(**parameters))
    commands = policy.react(world.view, world.last)
    assert Guard().judge(name, Limits(), commands, world.last) is None
    return list(commands)


def two_nodes():
    world = World()
    world.node("n1")
    world.node("n2")
    return world


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_thirty_lines_are_enough(path):
    code = [line for line in path.read_text().splitlines() if line.strip()]
    assert len(code) <= 36


def test_pin_served():
    world = two_nodes()
    artifact = world.artifact("a", "n1")
    world.engine("e1", node="n1")
    fields = {"engine": EngineId("e1"), "life": "one", "since": BEGIN}
    world.then(EngineServing(version="m@1", artifact=artifact, **fields))
    assert react(world, "pin-served") == [PinArtifact(artifact=artifact)]
    assert react(world, "pin-served", kinds=("adapter",)) == []
    world.then(EngineServing(version="disk", artifact=None, **fields))
    assert react(world, "pin-served") == []


def test_two_copies():
    world = two_nodes()
    artifact = world.artifact("a", "n1")
    second = RequestReplicas(artifact=artifact, nodes=(NodeId("n2"),))
    assert react(world, "two-copies") == [second]
    assert react(world, "two-copies", bytes_max=1) == []
    world.ready(artifact, "n2")
    assert react(world, "two-copies") == []


def test_tell_failures():
    world = two_nodes()
    artifact = world.artifact("a", "n1")
    operation = world.issue("op-1", "n2", Materialize(artifact=artifact))
    world.fail(operation)
    assert react(world, "tell-failures") == []
    (said,) = react(world, "tell-failures", attempts=1)
    assert isinstance(said, EmitSignal)
    assert said.data == {"node": "n2", "operation": "op-1", "fault": "as the test wants it"}
