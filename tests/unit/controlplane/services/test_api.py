from fnmatch import fnmatchcase

import msgspec
import pytest

from rigs import running_rig
from samples import artifact_id
from tensorcast.controlplane.services.api import ROUTES, answer
from tensorcast.schema import api, commands
from tensorcast.schema.api import parse_reply
from tensorcast.schema.errors import (
    Conflict,
    Corrupt,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Rejected,
    TensorCastError,
    Timeout,
    Unavailable,
)
from tensorcast.schema.events import KeyMoved
from tensorcast.schema.ids import ArtifactId, EventId, Key, LeaseId, NodeId, OperationId, Tier
from tensorcast.schema.nats_rights import READ_VERBS
from tensorcast.schema.work import Materialize
from worlds import World

A = artifact_id("a")


@pytest.fixture
async def rig():
    """Two nodes; artifact a on n1 under key k, with an operation that brings it to n2."""
    world = World()
    world.node("n1")
    world.node("n2")
    world.artifact("a", "n1")
    world.then(KeyMoved(key=Key("k"), artifact=A, previous=None, version=1))
    world.issue("op-0123456789", "n2", Materialize(artifact=A))
    async with running_rig() as rig:
        await rig.replay(world.events)
        yield rig


async def ask(rig, verb, request, shape):
    reply = await answer(rig.desk, verb, msgspec.json.encode(request))
    return parse_reply(reply, shape)


async def run(rig, command, *, actor="user:ada@desk", force=False):
    request = api.Execute(command=command, actor=actor, force=force)
    return await ask(rig, "execute", request, api.Executed)


def show(what, after=0):
    return api.Show(what=what, after=after)


# ---- requests that make no sense


@pytest.mark.parametrize("verb", ROUTES)
@pytest.mark.parametrize("payload", [b"", b"{", b"[]", b"null", b"1e999", b"\xff" * 100])
async def test_every_malformed_request_is_answered(rig, verb, payload):
    with pytest.raises(InvalidArgument, match="cannot be read"):
        parse_reply(await answer(rig.desk, verb, payload), object)


async def test_a_deep_request_is_answered(rig):
    with pytest.raises(InvalidArgument):
        parse_reply(await answer(rig.desk, "status", b"[" * 100_000), object)


async def test_an_unknown_verb_is_answered(rig):
    with pytest.raises(InvalidArgument, match="no verb 'sing'"):
        parse_reply(await answer(rig.desk, "sing", b"{}"), object)


async def test_a_failure_of_our_own_is_answered(rig, caplog):
    rig.history.find_events = None
    with pytest.raises(TensorCastError, match=r"failed at 'audit\.log'"):
        await ask(rig, "audit.log", api.AuditQuery(), object)
    assert "audit.log" in caplog.text


# ---- what there is


async def test_an_artifact_by_key_by_id_and_by_beginning(rig):
    for what in ("k", A, A[:6]):
        found = await ask(rig, "artifact.show", show(what), api.ArtifactInfo)
        assert (found.id, found.keys, found.bytes) == (A, ("k",), 4 << 20)
        assert found.replicas == (
            api.ReplicaInfo(
                node=NodeId("n1"), tier=Tier.DRAM, state="ready", chunks_ready=4, chunks_total=4
            ),
        )
    (tensor,) = await ask(rig, "artifact.tensors", show("k"), tuple[api.TensorInfo, ...])
    assert (tensor.name, tensor.dtype, tensor.bytes) == ("w", "F32", 4 << 20)


async def test_several_commands_are_carried_out_together_or_not_at_all(rig):
    moves = (
        commands.MoveKey(key=Key("p@2"), artifact=A),
        commands.MoveKey(key=Key("p@10"), artifact=A),
    )
    request = api.Execute(
        command=commands.MoveKey(key=Key("p"), artifact=A), actor="user:ada@desk", further=moves
    )
    done = await ask(rig, "execute", request, api.Executed)
    assert len(done.events) == 3
    key = await ask(rig, "key.show", show("p", done.seq), api.KeyInfo)
    assert (key.artifact, key.newest) == (A, 10)
    wrong = (
        commands.MoveKey(key=Key("q"), artifact=A),
        commands.MoveKey(key=Key("r"), artifact="0" * 40),
    )
    with pytest.raises(NotFound):
        await ask(rig, "execute", msgspec.structs.replace(request, further=wrong), api.Executed)
    with pytest.raises(NotFound):
        await ask(rig, "key.show", show("q"), api.KeyInfo)


async def test_operations_nodes_and_keys(rig):
    operation = await ask(rig, "operation.show", show("012345"), api.OperationInfo)
    assert (operation.kind, operation.status, operation.node) == ("materialize", "issued", "n2")
    node = await ask(rig, "node.show", show("n1"), api.NodeInfo)
    assert (node.state, node.replicas, node.tiers[Tier.DRAM].used) == ("up", 1, 4 << 20)
    key = await ask(rig, "key.show", show("k"), api.KeyInfo)
    assert (key.artifact, key.version, len(key.history)) == (A, 1, 1)
    for verb in ("artifact.show", "operation.show", "node.show", "key.show", "artifact.history"):
        request = show("nothing") if "show" in verb else api.AuditQuery(what="nothing")
        with pytest.raises(NotFound):
            await ask(rig, verb, request, object)


async def test_lists_are_filtered_and_the_newest_come_first(rig):
    async def names(verb, **filters):
        found = await ask(rig, verb, api.Browse(**filters), list[dict[str, object]])
        return [one.get("id") or one.get("node") or one.get("key") for one in found]

    assert await names("artifact.list") == [A]
    assert await names("artifact.list", status="removed") == []
    assert await names("artifact.list", node="n2") == []
    assert await names("operation.list", status="issued", node="n2", artifact="k") == [
        "op-0123456789"
    ]
    assert await names("operation.list", status="failed") == []
    assert await names("node.list") == ["n1", "n2"]
    await run(rig, commands.MoveKey(key=Key("k2"), artifact=A))
    assert await names("key.list") == ["k2", "k"]
    assert await names("key.list", limit=1) == ["k2"]
    for wrong in ({"status": "happy"}, {"limit": 0}):
        with pytest.raises(InvalidArgument):
            await names("artifact.list", **wrong)


async def test_status_tells_where_everybody_stands(rig):
    status = await ask(rig, "status", api.Ask(), api.ClusterStatus)
    assert status.last_seq == status.committed_seq == rig.view.at
    assert [node.node for node in status.nodes] == ["n1", "n2"]
    assert status.problems == ()
    rig.history.away = True
    status = await ask(rig, "status", api.Ask(), api.ClusterStatus)
    assert status.problems == ("Postgres cannot be reached.",)


# ---- what was


async def test_history_and_audit(rig):
    every = await ask(rig, "audit.log", api.AuditQuery(), list[api.EventInfo])
    assert [event.seq for event in every] == list(range(1, rig.view.at + 1))
    newest = await ask(rig, "audit.log", api.AuditQuery(limit=2, newest=True), list[api.EventInfo])
    assert newest == every[-2:]
    key = await ask(rig, "audit.log", api.AuditQuery(what="k"), list[api.EventInfo])
    assert [event.type for event in key] == ["key.moved"]
    history = await ask(rig, "artifact.history", api.AuditQuery(what="k"), list[api.EventInfo])
    assert "artifact.sealed" in [event.type for event in history]


async def test_history_needs_postgres_and_the_present_does_not(rig):
    rig.history.away = True
    for verb, request in (
        ("audit.log", api.AuditQuery()),
        ("artifact.history", api.AuditQuery(what="k")),
        ("replay", api.ReplayQuery(to_seq=1)),
    ):
        with pytest.raises(Unavailable):
            await ask(rig, verb, request, object)
    key = await ask(rig, "key.show", show("k"), api.KeyInfo)
    assert (key.artifact, key.history) == (A, ())


async def test_history_that_lags_is_answered_unless_more_was_asked_for(rig):
    rig.history.lag = 1
    await ask(rig, "audit.log", api.AuditQuery(), list[api.EventInfo])
    with pytest.raises(Timeout):
        await ask(rig, "audit.log", api.AuditQuery(after=rig.view.at), object)


async def test_replay_is_the_fold_of_the_first_events(rig):
    whole = await ask(rig, "replay", api.ReplayQuery(to_seq=rig.view.at), api.ReplayInfo)
    assert [a.id for a in whole.artifacts] == [A]
    assert [key.key for key in whole.keys] == ["k"]
    early = await ask(rig, "replay", api.ReplayQuery(to_seq=2), api.ReplayInfo)
    assert (early.at_seq, early.artifacts) == (2, ())
    assert [node.node for node in early.nodes] == ["n1", "n2"]
    part = api.ReplayQuery(to_seq=rig.view.at, kind="operation", what="012345")
    only = await ask(rig, "replay", part, api.ReplayInfo)
    assert [node.node for node in only.nodes] == ["n2"]


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"to_seq": 10_000},
        {"to_seq": -1},
        {"to_seq": 1, "to_time": "2030-01-01T00:00:00Z"},
        {"to_time": "2030-01-01T00:00:00"},
        {"to_seq": 1, "kind": "artifact"},
        {"to_seq": 1, "kind": "song", "what": "x"},
    ],
)
async def test_a_replay_to_nowhere(rig, query):
    with pytest.raises(InvalidArgument):
        await ask(rig, "replay", query, object)


# ---- commands


async def test_a_command_is_in_the_log_when_it_is_answered(rig):
    before = rig.view.at
    done = await run(rig, commands.PinArtifact(artifact=ArtifactId("k")))
    assert (len(done.events), done.seq) == (1, before + 1)
    again = await run(rig, commands.PinArtifact(artifact=A))
    assert (again.events, again.seq) == ((), done.seq)
    found = await ask(rig, "artifact.show", show("k", after=done.seq), api.ArtifactInfo)
    assert found.pinned


async def test_refusals(rig):
    for command, actor, error in (
        (commands.PinArtifact(artifact=ArtifactId("nothing")), "user:a@b", NotFound),
        (commands.PinArtifact(artifact=A), "policy:evict", PermissionDenied),
        (commands.RemoveArtifact(artifact=A), "user:a@b", Rejected),
        (commands.MoveKey(key=Key("k"), artifact=A), "user:a@b", None),
        (commands.RemoveKey(key=Key("k"), expect=ArtifactId("f" * 40)), "user:a@b", Conflict),
    ):
        if error is None:
            assert (await run(rig, command, actor=actor)).events == ()
            continue
        with pytest.raises(error):
            await run(rig, command, actor=actor)


async def test_force_removes_the_keys_in_the_same_append(rig):
    done = await run(rig, commands.RemoveArtifact(artifact=ArtifactId("k")), force=True)
    assert len(done.events) == 2
    with pytest.raises(NotFound):
        await ask(rig, "key.show", show("k"), api.KeyInfo)
    found = await ask(rig, "artifact.show", show(A), api.ArtifactInfo)
    assert found.state == "removed"


async def test_leases(rig):
    lease = commands.AcquireLease(
        lease=LeaseId("l"), artifact=ArtifactId("k"), node=None, holder="me", ttl_s=5.0
    )
    await run(rig, lease)
    assert (await ask(rig, "artifact.show", show("k"), api.ArtifactInfo)).leases == 1
    await run(rig, commands.ReleaseLease(lease=LeaseId("l")))
    assert (await ask(rig, "artifact.show", show("k"), api.ArtifactInfo)).leases == 0


# ---- waits


async def test_a_wait_that_is_over_answers_at_once_and_one_that_is_not_after_its_time(rig):
    wait = api.WaitOperation(operation=OperationId("op-0123456789"), timeout_s=0.01)
    assert (await ask(rig, "operation.wait", wait, api.OperationInfo)).status == "issued"
    await run(rig, commands.CancelOperation(operation=wait.operation, reason="enough"))
    wait = api.WaitOperation(operation=wait.operation, timeout_s=1e9)
    assert (await ask(rig, "operation.wait", wait, api.OperationInfo)).status == "cancelled"
    unknown = api.WaitOperation(operation=OperationId("op-none"), timeout_s=0.01)
    with pytest.raises(NotFound):
        await ask(rig, "operation.wait", unknown, object)


async def test_replicas_are_waited_for(rig):
    wait = api.WaitReplicas(
        artifact=A, nodes=(NodeId("n1"),), tier=Tier.DRAM, request=EventId("x"), timeout_s=5
    )
    progress = await ask(rig, "replicas.wait", wait, api.ReplicasProgress)
    assert (progress.done, progress.ready) == (True, ("n1",))
    gone = msgspec.structs.replace(wait, artifact=ArtifactId("f" * 40))
    with pytest.raises(NotFound):
        await ask(rig, "replicas.wait", gone, object)


async def test_nothing_is_changed_while_the_log_is_refused(rig):
    pin = commands.PinArtifact(artifact=A)
    rig.progress.problem = "Postgres cannot be reached."
    assert await run(rig, pin), "that Postgres is away keeps nobody from working"
    rig.progress.refusal = Corrupt("The log ends at event 3.", hint="Restore it.")
    with pytest.raises(Unavailable, match=r"Nothing can be changed. The log ends .* Restore it"):
        await run(rig, commands.UnpinArtifact(artifact=A))
    assert (await ask(rig, "artifact.show", show("k"), api.ArtifactInfo)).pinned


async def test_what_a_node_uses_is_its_own_word_while_it_is_up(rig):
    beat = b'{"epoch": 1, "tiers": {"dram": {"capacity": 67108864, "used": 67108864}}}'
    rig.desk.heartbeats.hear_node(NodeId("n1"), beat)
    nodes = await ask(rig, "node.list", api.Browse(), tuple[api.NodeInfo, ...])
    shown = await ask(rig, "node.show", api.Show(what="n1"), api.NodeInfo)
    assert nodes[0].tiers == shown.tiers
    assert shown.tiers[Tier.DRAM].used == 64 << 20  # slabs for KV blocks are no replicas
    assert nodes[1].tiers[Tier.DRAM].used == 0


@pytest.mark.parametrize("verb", ROUTES)
def test_a_verb_either_changes_something_or_is_for_readers_too(verb):
    """A new verb that only looks belongs into `READ_VERBS`, or keys of readers may not ask it."""
    writes = {"execute", "signal.emit", "engine_blocks.report", "log.import", "policy.change"}
    writes |= {verb for verb in ROUTES if verb.startswith("store.")}
    is_readable = any(fnmatchcase(verb, pattern) for pattern in READ_VERBS)
    assert is_readable is (verb not in writes)
