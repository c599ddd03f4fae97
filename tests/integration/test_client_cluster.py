"""The client on a cluster of two movers with a control plane."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time

import pytest
import torch

import tensorcast as tc
from stack import running_stack
from tensorcast.schema.api import AuditQuery, ReplayQuery

HOLDER = """
import tensorcast as tc, time
client = tc.connect().__enter__()
client.lease("victim", ttl=2.0).__enter__()
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def stack(_shared_postgres):
    if _shared_postgres.pid is None:
        _shared_postgres.start()
    with running_stack(_shared_postgres.create_database()) as running:
        running.start_mover("n1")
        running.start_mover("n2")
        running.start_controlplane()
        yield running


@pytest.fixture
def client(stack):
    with stack.connect() as connected:
        yield connected


def tensors(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {f"w{n}": torch.randn((500, 300), generator=generator) for n in range(8)}


def same(first, second) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[n], second[n]) for n in first)


def test_replicate_brings_the_bytes_to_another_node(stack, client):
    artifact = client.put(tensors(1), key="spread")
    replication = client.replicate("spread", to=["n2"])
    seen = []
    progress = replication.wait(timeout=30, report=seen.append)
    assert (replication.status, replication.node) == ("succeeded", "n2")
    assert progress.done
    assert seen[-1].done
    [operation] = replication.operations
    assert (operation.kind, operation.node, operation.status) == ("materialize", "n2", "succeeded")
    assert {r.node for r in artifact.replicas() if r.state == "ready"} == {"n1", "n2"}
    with stack.connect("n2") as other:
        assert same(other.get("spread"), tensors(1))
    kinds = [event.type for event in operation.events()]
    assert kinds[0] == "operation.issued"
    assert "operation.succeeded" in kinds
    assert [event.type for event in replication.events()] == kinds


def test_replicate_to_all_and_again_is_settled_at_once(client):
    client.put(tensors(2), key="everywhere")
    client.replicate("everywhere", to="all").wait(timeout=30)
    again = client.replicate("everywhere", to="all")
    again.wait(timeout=10)
    assert set(again.nodes) == {"n1", "n2"}
    disk = client.replicate("everywhere", to="n1", tier="disk")
    disk.wait(timeout=30)
    found = client.artifact("everywhere").replicas()
    assert {(r.node, r.tier) for r in found} == {("n1", "dram"), ("n2", "dram"), ("n1", "disk")}


@pytest.mark.parametrize(
    ("to", "tier", "kind", "told"),
    [
        (["n9"], "dram", tc.NotFound, "no node 'n9'"),
        ([], "dram", tc.InvalidArgument, "No node is named"),
        (["n2"], "tape", tc.InvalidArgument, "'tape' is not a tier"),
    ],
)
def test_what_cannot_be_replicated_is_told(client, to, tier, kind, told):
    client.put(tensors(1), key="spread")
    with pytest.raises(kind, match=told):
        client.replicate("spread", to=to, tier=tier)
    with pytest.raises(tc.NotFound, match="nobody"):
        client.replicate("nobody", to="all")


def test_get_brings_what_another_node_has(stack, client):
    client.put(tensors(3), key="demand")
    with stack.connect("n2") as other:
        assert same(other.get("demand", timeout=30), tensors(3))


def test_a_client_reads_what_it_wrote(client):
    for seed in range(40, 45):
        artifact = client.put(tensors(seed), key=f"own/{seed}")
        assert client.artifact(f"own/{seed}").id == artifact.id
        assert client.api.key(f"own/{seed}").artifact == artifact.id
        assert client.artifacts()[0].id == artifact.id


def test_an_artifact_tells_of_itself(client):
    made = client.put(tensors(5), key="tells", kind="checkpoint", labels={"step": "5"})
    found = client.artifact("tells")
    assert (found.id, found.kind, found.labels) == (made.id, "checkpoint", {"step": "5"})
    assert found.index == made.index
    assert same(found.tensors(["w3"]), {"w3": tensors(5)["w3"]})
    assert found.info().keys == ("tells",)
    history = found.history()
    assert {"artifact.sealed", "replica.ready", "key.moved"} <= {event.type for event in history}
    assert all(event.actor.startswith("user:") for event in history)
    assert client.artifact(made.id[:12]).id == made.id


def test_keys_are_moved_by_compare_and_set(client):
    first, second = client.put(tensors(6)), client.put(tensors(7))
    client.api.move_key("cas", first.id)
    with pytest.raises(tc.Conflict):
        client.api.move_key("cas", second.id)
    client.api.move_key("cas", second.id, expect=first.id)
    info = client.api.key("cas")
    assert [move.artifact for move in info.history] == [first.id, second.id]
    client.api.remove_key("cas", expect=second.id)
    with pytest.raises(tc.NotFound):
        client.get("cas", timeout=5)


def test_a_lease_is_renewed_and_released(client):
    client.put(tensors(8), key="leased")
    with client.lease("leased", ttl=1.5) as lease:
        assert client.api.artifact("leased").leases == 1
        time.sleep(4)  # longer than it lives without renewal
        assert client.api.artifact("leased").leases == 1
    assert lease.artifact == client.artifact("leased").id
    assert client.api.artifact("leased").leases == 0


def test_a_lease_that_nobody_renews_expires(stack, client):
    client.put(tensors(9), key="orphan")
    holder = stack.connect()
    holder.lease("orphan", ttl=1.0).__enter__()
    assert client.api.artifact("orphan").leases == 1
    holder._portal.close()  # as if the process had died
    deadline = time.monotonic() + 15
    while client.api.artifact("orphan").leases and time.monotonic() < deadline:
        time.sleep(0.1)
    assert client.api.artifact("orphan").leases == 0


def test_the_lease_of_a_killed_process_ends(stack, client):
    client.put(tensors(10), key="victim")
    environ = {
        **os.environ,
        "TENSORCAST_NATS_URL": stack.nats.url,
        "TENSORCAST_CLUSTER": "test",
        "TENSORCAST_SOCKET": str(stack.socket("n1")),
        "TENSORCAST_NODE": "n1",
    }
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER], env=environ, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        assert client.api.artifact("victim").leases == 1
    finally:
        holder.kill()
        holder.communicate()
    deadline = time.monotonic() + 15
    while client.api.artifact("victim").leases and time.monotonic() < deadline:
        time.sleep(0.1)
    assert client.api.artifact("victim").leases == 0


def test_a_lease_out_of_range_is_refused(client):
    client.put(tensors(9), key="orphan")
    with pytest.raises(tc.InvalidArgument, match="out of range"), client.lease("orphan", ttl=0.1):
        pass


def test_verify_checks_every_replica(client):
    client.put(tensors(10), key="checked")
    client.replicate("checked", to="all").wait(timeout=30)
    checked = client.verify("checked", timeout=30)
    assert {(op.kind, op.node, op.status) for op in checked} == {
        ("verify", "n1", "succeeded"),
        ("verify", "n2", "succeeded"),
    }
    with pytest.raises(tc.NotFound, match="no replica that is ready on node n7"):
        client.verify("checked", node="n7")


def test_wait_sees_what_somebody_publishes_later(stack, client):
    def publish() -> None:
        with stack.connect("n2") as other:
            other.put(tensors(11), key="later")

    with pytest.raises(tc.Timeout, match="not ready"):
        client.wait("later", timeout=0.3)
    later = threading.Timer(0.5, publish)
    later.start()
    assert client.wait("later", timeout=20).id
    later.join()


def test_the_record_can_be_asked(client):
    artifact = client.put(tensors(12), key="record")
    events = client.api.audit(AuditQuery(artifact=artifact.id))
    assert [event.seq for event in events] == sorted(event.seq for event in events)
    few = client.api.audit(AuditQuery(limit=7))
    assert [event.seq for event in few] == list(range(1, 8))
    sealed = next(event for event in events if event.type == "artifact.sealed")
    before = client.api.replay(ReplayQuery(to_seq=sealed.seq - 1))
    after = client.api.replay(ReplayQuery(to_seq=sealed.seq))
    assert artifact.id not in {a.id for a in before.artifacts}
    assert artifact.id in {a.id for a in after.artifacts}
    assert client.api.status().last_seq >= events[-1].seq


def test_operations_can_be_found_and_asked(client):
    client.put(tensors(13), key="ops")
    client.replicate("ops", to="n2").wait(timeout=30)
    [info] = client.api.operations(artifact="ops", status="succeeded")
    operation = client.operation(info.id)
    assert operation.wait(timeout=5).status == "succeeded"
    with pytest.raises(tc.Conflict):
        operation.cancel()
    with pytest.raises(tc.NotFound):
        client.operation("op-0123456789abcdef01234567")


def test_a_node_can_be_cordoned_and_is_left_out(client):
    client.put(tensors(14), key="cordon")
    client.api.cordon("n2")
    try:
        assert client.api.node("n2").cordoned
        assert client.replicate("cordon", to="all").nodes == ("n1",)
    finally:
        client.api.uncordon("n2")


def test_a_pinned_artifact_is_not_removed(client):
    artifact = client.put(tensors(15))
    client.api.pin(artifact.id)
    with pytest.raises(tc.Conflict, match="pinned"):
        client.api.remove_artifact(artifact.id)
    client.api.unpin(artifact.id)
    client.api.remove_artifact(artifact.id)
    with pytest.raises(tc.NotFound):
        client.get(artifact.id, timeout=5)


def test_waiting_for_a_source_that_is_nowhere_ends_with_the_reason(stack, client):
    """The only replica is lost with its mover: the operation fails, and says where and why."""
    stack.start_mover("n3")
    with stack.connect("n3") as third:
        artifact = third.put(tensors(16), key="gone")
    stack.kill("n3")
    deadline = time.monotonic() + 20
    while client.api.node("n3").state == "up" and time.monotonic() < deadline:
        time.sleep(0.2)
    with pytest.raises(tc.Unavailable, match="Node n3 is lost") as down:
        client.replicate("gone", to=["n3"])
    assert down.value.node == "n3"
    replication = client.replicate("gone", to=["n2"])
    with pytest.raises((tc.Unavailable, tc.Timeout)) as caught:
        replication.wait(timeout=20)
    assert caught.value.artifact == artifact.id
    assert caught.value.node == "n2"


async def test_the_async_client_waits_for_many_at_once(stack):
    async with tc.connect_async(stack.context()) as client:
        await client.put(tensors(17), key="a17")
        await client.put(tensors(18), key="a18")
        replications = await asyncio.gather(
            client.replicate("a17", to="n2"), client.replicate("a18", to="n2")
        )
        await asyncio.gather(*(r.wait(timeout=30) for r in replications))
        async with client.lease("a17", ttl=5):
            assert (await client.api.artifact("a17")).leases == 1
        assert (await client.api.artifact("a17")).leases == 0


@pytest.mark.slow
def test_a_wait_outlives_the_control_plane(stack, client):
    """Last in this file: it restarts the control plane in the middle of a wait."""
    client.put(tensors(19), key="patience")
    replication = client.replicate("patience", to="n2")
    stack.kill("controlplane")
    restart = threading.Timer(1.0, stack.start_controlplane)
    restart.start()
    assert replication.wait(timeout=60).done
    restart.join()
