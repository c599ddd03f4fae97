"""Policies and real movers: pressure, claims, drains, removals and losses, with real bytes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import pytest

from stack import running_stack
from tensorcast.client import Client, OutOfCapacity
from tensorcast.schema.api import AuditQuery

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow
MIB = 1 << 20
T = TypeVar("T")
SIZE = 32 * MIB


@pytest.fixture
def stack(postgres_url):
    with running_stack(postgres_url) as stack:
        yield stack


def start(stack, *nodes: str, dram_bytes: int = 128 * MIB) -> Client:
    for node in nodes:
        stack.start_mover(node, dram_bytes=dram_bytes)
    stack.start_controlplane()
    return stack.connect(nodes[0])


def put(client: Client, name: str) -> str:
    """Another 32 MiB; the bytes follow from the name."""
    torch.manual_seed(sum(name.encode()))
    tensors = {"w": torch.randint(0, 255, (SIZE,), dtype=torch.uint8)}
    return patiently(lambda: client.put(tensors, key=name)).id


def patiently(work: Callable[[], T]) -> T:
    """Again while memory is full: eviction is making room."""
    for _ in range(5):
        try:
            return work()
        except OutOfCapacity:
            time.sleep(0.5)
    return work()


def where(client: Client, name: str) -> dict[tuple[str, str], str]:
    return {(r.node, r.tier.value): r.state for r in client.artifact(name).replicas()}


def until(predicate: Callable[[], bool], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not predicate():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


def same(client: Client, name: str) -> bool:
    torch.manual_seed(sum(name.encode()))
    wanted = torch.randint(0, 255, (SIZE,), dtype=torch.uint8)
    return torch.equal(patiently(lambda: client.get(name))["w"], wanted)


def test_last_copies_go_to_disk_under_pressure_and_claims_hold(stack):
    with start(stack, "n1") as client:
        put(client, "pinned")
        client.api.pin("pinned")
        put(client, "leased")
        with client.lease("leased"):
            for name in ("cold", "warm", "more", "last"):
                put(client, name)
            until(lambda: ("n1", "dram") not in where(client, "cold"))
            assert where(client, "cold") == {("n1", "disk"): "ready"}
            for name in ("pinned", "leased"):
                assert where(client, name)[("n1", "dram")] == "ready"
        for name in ("pinned", "leased", "cold", "warm", "more", "last"):
            assert same(client, name)


def test_each_admission_to_a_full_node_is_quick(stack):
    """None waits because an earlier one, long satisfied, has called for room."""
    with start(stack, "n1") as client:
        for n in range(4):
            put(client, f"first {n}")
        took_s = []
        for n in range(6):
            began = time.monotonic()
            put(client, f"next {n}")
            took_s.append(time.monotonic() - began)
        assert sum(took_s) / len(took_s) < 1.0, took_s
        pressed = client.api.audit(AuditQuery(type="node.pressured", limit=500))
        assert len(pressed) <= 2 * len(took_s)


def test_a_drained_node_gives_all_away(stack):
    with start(stack, "n1", "n2") as client:
        put(client, "a")
        put(client, "b")
        client.replicate("b", to=["n2"]).wait(timeout=30)
        client.api.drain("n1")
        until(lambda: all(("n1", "dram") not in where(client, name) for name in "ab"))
        for name in "ab":
            assert where(client, name) == {("n2", "dram"): "ready"}
    with stack.connect("n2") as other:
        assert same(other, "a")


def test_what_is_removed_is_dropped(stack):
    with start(stack, "n1", "n2") as client:
        artifact = put(client, "a")
        client.replicate("a", to=["n2"], tier="disk").wait(timeout=30)
        client.api.remove_artifact("a", force=True)
        until(lambda: where(client, artifact) == {})


def test_a_lost_node_is_made_up_for(stack):
    with start(stack, "n1", "n2", "n3") as client:
        put(client, "a")
        client.replicate("a", to=["n2"]).wait(timeout=30)
        stack.kill("n2")
        until(lambda: where(client, "a").get(("n3", "dram")) == "ready")
    with stack.connect("n3") as other:
        assert same(other, "a")
