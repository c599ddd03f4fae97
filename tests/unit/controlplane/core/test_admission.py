import msgspec
import pytest

from samples import BEGIN, artifact_id
from tensorcast.controlplane.core.admission import NODES_MAX, admit, check_actor
from tensorcast.schema import commands
from tensorcast.schema.errors import (
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Rejected,
    Unavailable,
)
from tensorcast.schema.events import ArtifactRemoved, KeyMoved, NodeCordoned, NodeLeft, NodeLost
from tensorcast.schema.ids import (
    EngineId,
    Epoch,
    Key,
    LeaseId,
    NodeId,
    OperationId,
    ReplicaId,
    Tier,
)
from tensorcast.schema.work import Materialize
from worlds import World

A = artifact_id("a")


@pytest.fixture
def world():
    world = World()
    world.node("n1")
    world.node("n2")
    world.artifact("a", "n1")
    return world


def key(world, name="k"):
    world.then(KeyMoved(key=Key(name), artifact=A, previous=None, version=1))


def request(*nodes, artifact=A):
    return commands.RequestReplicas(artifact=artifact, nodes=tuple(map(NodeId, nodes)))


@pytest.mark.parametrize(
    "command",
    [
        commands.DropReplica(replica=ReplicaId("r"), epoch=Epoch(1)),
        commands.LoseNode(node=NodeId("n1"), epoch=Epoch(1), silent_s=1),
        commands.IssueOperation(
            operation=OperationId("op"),
            node=NodeId("n1"),
            work=Materialize(artifact=A),
            policy="me",
        ),
    ],
)
def test_what_movers_and_policies_write_is_denied_to_users(world, command):
    with pytest.raises(PermissionDenied):
        admit(world.view, command)


@pytest.mark.parametrize("actor", ["policy:evict", "mover:n1", "timers", "controlplane"])
def test_nobody_acts_as_a_part_of_the_cluster(actor):
    with pytest.raises(PermissionDenied):
        check_actor(actor)


@pytest.mark.parametrize("actor", ["", "x" * 300, "user:a\nb"])
def test_actors_are_short_and_printable(actor):
    with pytest.raises(InvalidArgument):
        check_actor(actor)


def test_users_act_as_users():
    check_actor("user:ada@desk")


def test_names_are_resolved(world):
    key(world)
    assert admit(world.view, commands.PinArtifact(artifact="k")) == (
        commands.PinArtifact(artifact=A),
    )
    assert admit(world.view, request("n2", artifact=A[:8])) == (request("n2"),)
    move = commands.MoveKey(key=Key("k"), artifact=A[:8], expect=A[:7])
    assert admit(world.view, move) == (commands.MoveKey(key=Key("k"), artifact=A, expect=A),)
    unknown = commands.MoveKey(key=Key("k"), artifact=A, expect="f" * 40)
    assert admit(world.view, unknown) == (unknown,)


def test_a_key_needs_an_artifact_and_a_name(world):
    with pytest.raises(NotFound, match="no artifact"):
        admit(world.view, commands.MoveKey(key=Key("k"), artifact="f" * 40))
    with pytest.raises(InvalidArgument):
        admit(world.view, commands.MoveKey(key=Key(" "), artifact=A))
    world.then(ArtifactRemoved(artifact=A))
    with pytest.raises(NotFound, match="was removed"):
        admit(world.view, commands.MoveKey(key=Key("k"), artifact=A))


def test_a_request_needs_nodes_that_can_take_it(world):
    world.node("n3")
    world.node("n4")
    world.then(NodeLeft(node=NodeId("n2"), epoch=Epoch(1)))
    world.then(NodeLost(node=NodeId("n3"), epoch=Epoch(1), silent_s=5))
    world.then(NodeCordoned(node=NodeId("n4")))
    for node, error, words in (
        ("n2", Unavailable, "Node n2 was stopped"),
        ("n3", Unavailable, "Node n3 was lost"),
        ("n4", Rejected, "Node n4 is cordoned"),
        ("n9", NotFound, "no node 'n9'"),
    ):
        with pytest.raises(error, match=words):
            admit(world.view, request("n1", node))


def test_the_store_is_for_nodes_that_have_access(world):
    wanted = msgspec.structs.replace(request("n1"), tier=Tier.OBJECT)
    with pytest.raises(Rejected, match="Node n1 has no access to a store"):
        admit(world.view, wanted)
    world.node("n9", store=True)
    wanted = msgspec.structs.replace(wanted, nodes=(NodeId("n9"),))
    assert admit(world.view, wanted) == (wanted,)


def test_a_request_is_limited(world):
    with pytest.raises(InvalidArgument, match="at most"):
        admit(world.view, request(*["n1"] * (NODES_MAX + 1)))


def test_an_artifact_with_keys_is_removed_by_force_only(world):
    remove = commands.RemoveArtifact(artifact=A)
    assert admit(world.view, remove) == (remove,)
    key(world, "k1")
    key(world, "k2")
    with pytest.raises(Rejected, match="Keys k1, k2 point to artifact"):
        admit(world.view, remove)
    assert admit(world.view, remove, force=True) == (
        commands.RemoveKey(key=Key("k1"), expect=A),
        commands.RemoveKey(key=Key("k2"), expect=A),
        remove,
    )


def test_a_leased_artifact_is_removed_by_force_only(world):
    world.lease(A)
    with pytest.raises(Rejected, match="lease"):
        admit(world.view, commands.RemoveArtifact(artifact=A))
    assert admit(world.view, commands.RemoveArtifact(artifact=A), force=True)


def test_a_verification_without_names_is_of_all_replicas(world):
    world.ready(A, "n2", Tier.DISK)
    every = commands.RequestVerification(artifact=A, replicas=())
    (admitted,) = admit(world.view, every)
    assert admitted.replicas == (world.replica(A, "n1"), world.replica(A, "n2", Tier.DISK))
    with pytest.raises(NotFound, match="no replica"):
        admit(world.view, commands.RequestVerification(artifact=A, replicas=(ReplicaId("r"),)))


def test_a_lease_needs_an_artifact_a_node_and_names(world):
    def lease(**changes):
        values = {"lease": "l", "artifact": A, "node": None, "holder": "me", "ttl_s": 5.0}
        return commands.AcquireLease(**(values | changes))

    assert admit(world.view, lease()) == (lease(),)
    for changes, error in (
        ({"artifact": "f" * 40}, NotFound),
        ({"node": "n9"}, NotFound),
        ({"lease": ""}, InvalidArgument),
        ({"holder": "x" * 300}, InvalidArgument),
    ):
        with pytest.raises(error):
            admit(world.view, lease(**changes))


def test_operations_and_nodes_must_be_known(world):
    operation = world.issue("op-0123456789", "n1", Materialize(artifact=A))
    cancel = commands.CancelOperation(operation=OperationId("012345"), reason="")
    assert admit(world.view, cancel)[0].operation == operation
    for command in (
        commands.RetryOperation(operation=OperationId("op-999999")),
        commands.DrainNode(node=NodeId("n9")),
    ):
        with pytest.raises(NotFound):
            admit(world.view, command)
    assert admit(world.view, commands.CordonNode(node=NodeId("n1")))


def test_what_its_aggregate_alone_decides_is_let_through(world):
    for command in (
        commands.RemoveKey(key=Key("k")),
        commands.ReleaseLease(lease=LeaseId("l")),
        commands.RegisterEngine(engine=EngineId("e"), life="one", node=NodeId("n9"), ttl_s=5.0),
        commands.ServeWeights(
            engine=EngineId("e"), life="one", version="v", artifact=None, since=BEGIN
        ),
        commands.LeaveEngine(engine=EngineId("e"), life="one"),
    ):
        assert admit(world.view, command) == (command,)
