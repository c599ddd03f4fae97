from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tensorcast.client.faults import failure_of, failures_of
from tensorcast.client.replication import choose_nodes
from tensorcast.schema.api import NodeInfo, OperationInfo
from tensorcast.schema.api_faults import FaultInfo
from tensorcast.schema.errors import (
    Cancelled,
    Corrupt,
    InvalidArgument,
    NotFound,
    OutOfCapacity,
    Unavailable,
)
from tensorcast.schema.ids import ArtifactId, NodeId, OperationId, Tier, parse_tier

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def node(name: str, state: str = "up", *, cordoned: bool = False) -> NodeInfo:
    return NodeInfo(
        node=NodeId(name),
        epoch=1,
        state=state,
        address="127.0.0.1:1",
        cordoned=cordoned,
        draining=False,
        tiers={},
        transports=(),
        replicas=0,
        labels={},
        joined_at=NOW,
    )


KNOWN = (node("n1"), node("n2"), node("n3", "lost"), node("n4", cordoned=True))


@pytest.mark.parametrize(
    ("to", "nodes"),
    [
        ("all", ("n1", "n2")),
        (["all"], ("n1", "n2")),
        ("n2", ("n2",)),
        ("n2,n1", ("n2", "n1")),
        (["n1", "n1"], ("n1",)),
        (["n4"], ("n4",)),
    ],
)
def test_nodes_are_chosen(to, nodes):
    assert choose_nodes(to, KNOWN) == nodes


@pytest.mark.parametrize(
    ("to", "kind", "told"),
    [
        (["n9"], NotFound, "no node 'n9'"),
        (["n1", "n3"], Unavailable, "n3 is lost"),
        ([], InvalidArgument, "No node is named"),
        ("", NotFound, "no node ''"),
    ],
)
def test_what_cannot_be_meant_is_told(to, kind, told):
    with pytest.raises(kind, match=told):
        choose_nodes(to, KNOWN)


def test_all_of_no_nodes_is_told():
    with pytest.raises(Unavailable, match="No node is up"):
        choose_nodes("all", (node("n3", "left"),))


def test_a_tier_is_read():
    assert parse_tier("disk") is Tier.DISK
    with pytest.raises(InvalidArgument, match="dram, disk"):
        parse_tier("tape")


def operation(status: str, fault: FaultInfo | None = None, *, at: str = "n2") -> OperationInfo:
    return OperationInfo(
        id=OperationId(f"op-{at}"),
        kind="materialize",
        node=NodeId(at),
        artifact=ArtifactId("a" * 40),
        status=status,
        attempt=1,
        bytes_moved=0,
        transports={},
        policy="replicate",
        cause=None,
        fault=fault,
        issued_at=NOW,
        ended_at=NOW,
    )


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("unavailable", Unavailable),
        ("corrupt", Corrupt),
        ("out_of_capacity", OutOfCapacity),
        ("not_found", NotFound),
        ("cancelled", Cancelled),
    ],
)
def test_a_failed_operation_says_what_and_where(kind, error):
    fault = FaultInfo(kind=kind, detail="No source has it.", retryable=True)
    failure = failure_of(operation("failed", fault))
    assert type(failure) is error
    assert (failure.operation, failure.node, failure.artifact) == ("op-n2", "n2", "a" * 40)
    assert all(word in failure.message for word in ("op-n2", "n2", "a" * 40, "No source has it."))
    assert "tcctl op show op-n2" in failure.hint


def test_a_cancelled_operation_is_told_as_such():
    assert type(failure_of(operation("cancelled"))) is Cancelled


def test_a_fault_of_a_newer_release_is_still_an_error():
    fault = FaultInfo(kind="cosmic_ray", detail="A bit fell.", retryable=False)
    assert "A bit fell." in failure_of(operation("failed", fault)).message


def test_several_failures_are_counted():
    fault = FaultInfo(kind="corrupt", detail="Bad bytes.", retryable=True)
    failed = [operation("failed", fault, at=f"n{n}") for n in range(1, 4)]
    failure = failures_of(failed)
    assert (type(failure), failure.node) == (Corrupt, "n1")
    assert failure.hint.startswith("2 more failed (op-n2 on n2, op-n3 on n3).")
