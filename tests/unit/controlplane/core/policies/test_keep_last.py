import pytest

from samples import BEGIN
from tensorcast.controlplane.core.policies.keep_last import KeepLast, KeepLastParameters
from tensorcast.schema.commands import RemoveArtifact, RemoveKey
from tensorcast.schema.engine_events import EngineServing
from tensorcast.schema.events import ArtifactPinned, ArtifactUnpinned, KeyMoved, LeaseReleased
from tensorcast.schema.ids import EngineId, Key, LeaseId
from worlds import World


def react(world, **parameters):
    """What goes: the keys, and the artifacts."""
    commands = KeepLast(KeepLastParameters(**parameters)).react(world.view, world.last)
    keys = [command.key for command in commands if isinstance(command, RemoveKey)]
    gone = [command.artifact for command in commands if isinstance(command, RemoveArtifact)]
    assert len(commands) == len(keys) + len(gone)
    return keys, gone


def publish(world, *numbers, name="policy"):
    artifacts = []
    for number in numbers:
        artifacts.append(world.artifact(f"{name}{number}", "n1"))
        point(world, f"{name}@{number}", artifacts[-1])
    return artifacts


def point(world, key, artifact):
    world.then(KeyMoved(key=Key(key), artifact=artifact, previous=None, version=1))


def one_node():
    world = World()
    world.node("n1")
    return world


def test_the_highest_numbers_stay_whatever_their_order():
    world = one_node()
    artifacts = publish(world, 9, 10, 2, 8)
    assert react(world) == (["policy@2"], [artifacts[2]])
    assert react(world, versions=4) == ([], [])
    assert react(world, versions=1)[0] == ["policy@2", "policy@8", "policy@9"]
    assert react(world, names=("other",)) == ([], [])


def test_names_are_apart_and_what_has_no_number_stays():
    world = one_node()
    publish(world, 1, 2, 3)
    publish(world, 1, name="other")
    assert react(world, versions=1) == ([], [])
    publish(world, 4)
    point(world, "policy@latest", world.artifact("x", "n1"))
    assert react(world, versions=1) == ([], []), "it was no version that moved"


@pytest.mark.parametrize("claim", ["pin", "lease", "engine", "key"])
def test_what_is_claimed_stays_until_the_claim_ends(claim):
    world = one_node()
    (first,) = publish(world, 1)
    match claim:
        case "pin":
            world.then(ArtifactPinned(artifact=first))
        case "lease":
            world.lease(first)
        case "engine":
            world.engine("e1", node="n1")
            serve(world, "policy@1", first)
        case "key":
            point(world, "best", first)
    publish(world, 2)
    assert react(world, versions=1) == ([], [])
    match claim:
        case "pin":
            world.then(ArtifactUnpinned(artifact=first))
        case "lease":
            world.then(LeaseReleased(lease=LeaseId("l1")))
        case "engine":
            serve(world, "policy@2", None)
        case "key":
            return
    assert react(world, versions=1) == (["policy@1"], [first])


def serve(world, version, artifact):
    world.then(
        EngineServing(
            engine=EngineId("e1"), life="one", version=version, artifact=artifact, since=BEGIN
        )
    )
