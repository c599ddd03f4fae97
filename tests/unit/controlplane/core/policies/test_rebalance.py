from samples import artifact_id, manifest
from tensorcast.controlplane.core.policies.rebalance import Rebalance, RebalanceParameters
from tensorcast.schema.events import ArtifactSealed, SignalEmitted
from tensorcast.schema.work import Materialize
from worlds import World


def react(world, **parameters):
    """(artifact, nodes) of each request."""
    commands = Rebalance(RebalanceParameters(**parameters)).react(world.view, world.last)
    return [(command.artifact, command.nodes) for command in commands]


def load(world, waiting, engine="e1"):
    world.then(SignalEmitted(topic=f"engine.load.{engine}", data={"waiting": waiting}))


def prefix(world, name, node):
    artifact = artifact_id(name)
    world.then(ArtifactSealed(artifact=artifact, kind="kv", manifest=manifest(4)))
    world.ready(artifact, node)
    return artifact


def two_engines():
    world = World()
    for number in (1, 2, 3):
        world.node(f"n{number}")
        world.engine(f"e{number}", node=f"n{number}")
    return world, prefix(world, "cold", "n1"), prefix(world, "hot", "n1")


def test_the_hottest_prefix_of_a_busy_engine_goes_beside_it():
    world, cold, hot = two_engines()
    world.issue("op-1", "n3", Materialize(artifact=hot), policy="demand")
    world.succeed("op-1")
    world.ready(hot, "n3")
    load(world, 20)
    assert react(world) == [(hot, ("n2",))]
    assert react(world, waiting=21) == []
    assert react(world, kinds=("weights",)) == []
    world.request(hot, "n2")
    world.ready(hot, "n2")
    load(world, 20)
    assert react(world) == [(cold, ("n2",))]


def test_not_while_the_last_one_is_on_its_way():
    world, cold, _ = two_engines()
    world.issue("op-1", "n2", Materialize(artifact=cold))
    load(world, 20)
    assert react(world) == [] or react(world)[0][0] != cold


def test_signals_that_say_nothing_of_a_busy_engine():
    world, _, _ = two_engines()
    for topic, data in (
        ("engine.load.e9", {"waiting": 99}),
        ("engine.load.e1", {"waiting": "many"}),
        ("engine.load.e1", {}),
        ("other", {"waiting": 99}),
    ):
        world.then(SignalEmitted(topic=topic, data=data))
        assert react(world) == []
