from __future__ import annotations

from datetime import timedelta

import pytest

from cli_samples import ART, FAULT, artifact, node, operation
from samples import BEGIN
from tensorcast.cli import tables
from tensorcast.cli.output import Fields, Table
from tensorcast.schema.api import KeyInfo, KeyMove, TensorInfo
from tensorcast.schema.ids import Key, Seq

NOW = BEGIN + timedelta(minutes=10)
MOVES = (
    KeyMove(artifact=ART, at=BEGIN, actor="user:ada@desk", seq=Seq(3)),
    KeyMove(artifact=None, at=BEGIN, actor="user:ada@desk", seq=Seq(4)),
)
KEY = KeyInfo(key=Key("llama@1"), artifact=None, version=2, history=MOVES)
SCALAR = TensorInfo(name="scale", dtype="F32", shape=(), offset=64, bytes=4)


@pytest.mark.parametrize(
    "table",
    [
        tables.table_artifacts([artifact()], NOW),
        tables.table_replicas(artifact().replicas),
        tables.table_tensors([SCALAR]),
        tables.table_keys([KEY]),
        tables.table_moves(MOVES),
        tables.table_operations([operation()], NOW),
        tables.table_nodes([node()]),
    ],
)
def test_each_row_has_a_cell_for_each_title(table: Table) -> None:
    assert table.rows
    assert all(len(row) == len(table.titles) for row in table.rows)
    assert table.right | table.fold <= set(table.titles)


def cells(table: Table) -> dict[str, str]:
    return dict(zip(table.titles, table.rows[0], strict=True))


def fields(blocks: object) -> dict[str, str]:
    (first, *_) = blocks
    assert isinstance(first, Fields)
    return dict(first.pairs)


def test_an_artifact() -> None:
    row = cells(tables.table_artifacts([artifact()], NOW))
    assert row["id"] == ART[:12]
    assert row["size"] == "3.0 MiB"
    assert row["where"] == "n1/dram, n2/dram (filling)"
    assert row["age"] == "10m"
    assert fields(tables.describe_artifact(artifact(pinned=True)))["pinned"] == "yes"


def test_chunk_progress() -> None:
    rows = tables.table_replicas(artifact().replicas).rows
    assert [row[-2:] for row in rows] == [("3/3", "100%"), ("1/3", "33%")]


def test_shapes() -> None:
    assert cells(tables.table_tensors([SCALAR]))["shape"] == "scalar"
    matrix = TensorInfo(name="w", dtype="BF16", shape=(2, 3), offset=0, bytes=12)
    assert cells(tables.table_tensors([matrix]))["shape"] == "2x3"


def test_a_removed_key_says_so() -> None:
    assert cells(tables.table_keys([KEY]))["artifact"] == "removed"
    assert "removed" in fields(tables.describe_key(KEY))["artifact"]


def test_an_operation_that_failed_says_why() -> None:
    failed = operation(status="failed", fault=FAULT)
    assert cells(tables.table_operations([failed], NOW))["why"] == FAULT.detail
    assert fields(tables.describe_operation(failed))["fault"] == f"unavailable: {FAULT.detail}"


def test_an_operation_that_ended_tells_its_time_and_rate() -> None:
    assert "(after 2.0 s, 1.5 MiB/s)" in fields(tables.describe_operation(operation()))["ended"]
    running = operation(status="running", ended_at=None)
    assert fields(tables.describe_operation(running))["ended"] == ""


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "up"),
        ({"cordoned": True}, "up, cordoned"),
        ({"cordoned": True, "draining": True}, "up, draining"),
        ({"state": "lost"}, "lost"),
        ({"trouble": "Its disk is full."}, "up, in trouble"),
    ],
)
def test_the_state_of_a_node(changes: dict[str, object], words: str) -> None:
    assert tables.describe_state(node(**changes)) == words


def test_the_memory_of_a_node() -> None:
    row = cells(tables.table_nodes([node()]))
    assert (row["dram"], row["disk"]) == ("3.0 MiB of 1.0 GiB", "")
    assert fields(tables.describe_node(node()))["dram"] == "3.0 MiB of 1.0 GiB"
