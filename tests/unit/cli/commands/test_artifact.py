from __future__ import annotations

import msgspec
import pytest

from cli_samples import ART, Answers, FakeClient, Tcctl, artifact, event, operation
from tensorcast.cli.commands.artifact import describe_places
from tensorcast.schema.api import ReplicaInfo, TensorInfo
from tensorcast.schema.api_faults import FaultInfo
from tensorcast.schema.errors import Rejected
from tensorcast.schema.ids import NodeId, Tier

REPLICA_FIELDS = {"node", "tier", "state", "chunks_ready", "chunks_total"}
FIELDS = {"id", "kind", "state", "bytes", "tensors", "labels", "keys", "replicas"}


@pytest.mark.parametrize("verb", ["show", "where"])
def test_show_and_where_have_the_fields_of_the_interface(tcctl: Tcctl, verb: str) -> None:
    tcctl.answer(artifact=artifact())
    data = tcctl("artifact", verb, "llama@1", "-o", "json").data
    assert set(data) >= FIELDS
    assert set(data["replicas"][0]) >= REPLICA_FIELDS
    assert data["bytes"] == 3 << 20


def test_where_for_people_shows_each_replica(tcctl: Tcctl) -> None:
    tcctl.answer(artifact=artifact())
    lines = tcctl("artifact", "where", "llama@1").out.splitlines()
    assert lines[2].split() == ["n2", "dram", "filling", "1/3", "33%"]


def test_ls(tcctl: Tcctl) -> None:
    api = tcctl.answer(artifacts=(artifact(),))
    run = tcctl("artifact", "ls", "--node", "n1", "--limit", "5", "-o", "json")
    assert [one["id"] for one in run.data] == [ART]
    assert api.calls == [("artifacts", (), {"node": "n1", "status": None, "limit": 5})]
    assert tcctl("artifact", "ls", "-q").out == f"{ART}\n"


def test_ls_of_nothing(tcctl: Tcctl) -> None:
    tcctl.answer(artifacts=())
    assert "tcctl put" in tcctl("artifact", "ls").out
    assert tcctl("artifact", "ls", "-o", "json").data == []


def test_tensors(tcctl: Tcctl) -> None:
    tensor = TensorInfo(name="w", dtype="F32", shape=(2, 2), offset=0, bytes=16)
    tcctl.answer(tensors=(tensor,))
    data = tcctl("artifact", "tensors", "x", "-o", "json").data
    assert data == [{"name": "w", "dtype": "F32", "shape": [2, 2], "offset": 0, "bytes": 16}]


def test_history_streams_events(tcctl: Tcctl) -> None:
    events = (
        event(5, "artifact.pinned", {"artifact": ART}),
        event(6, "artifact.unpinned", {"artifact": ART}, cause=5),
    )
    tcctl.answer(history=events)
    lines = tcctl("artifact", "history", "x", "-o", "ndjson").out.splitlines()
    fields = {"seq", "id", "type", "v", "at", "actor", "cause", "data"}
    assert [set(msgspec.json.decode(line)) for line in lines] == [fields, fields]
    assert tcctl("artifact", "history", "x").out.rstrip().endswith(" #5")


@pytest.mark.parametrize(("verb", "method"), [("pin", "pin"), ("unpin", "unpin")])
def test_changes_answer_with_the_artifact_as_it_is_now(
    tcctl: Tcctl, verb: str, method: str
) -> None:
    api = tcctl.answer(**{method: None}, artifact=artifact())
    assert tcctl("artifact", verb, "x", "-o", "json").data["id"] == ART
    assert [name for name, _, _ in api.calls] == [method, "artifact"]


def test_rm_of_what_is_in_use_is_a_conflict(tcctl: Tcctl) -> None:
    tcctl.answer(artifact=artifact(), remove_artifact=Rejected("It is pinned."))
    assert tcctl("artifact", "rm", "x").code == 4


def test_rm_asks_by_id_as_the_key_goes_too(tcctl: Tcctl) -> None:
    api = tcctl.answer(remove_artifact=None, artifact=artifact())
    assert tcctl("artifact", "rm", "x", "--force", "-o", "json").data["id"] == ART
    assert api.calls == [
        ("artifact", ("x",), {}),
        ("remove_artifact", (ART,), {"force": True}),
        ("artifact", (ART,), {}),
    ]


def test_verify_waits_and_tells_that_all_is_well(tcctl: Tcctl) -> None:
    checked = Answers()
    checked.info = operation(kind="verify")
    tcctl.client = FakeClient(Answers(artifact=artifact()), verify=(checked,))
    run = tcctl("artifact", "verify", "x", "--node", "n2", "--timeout", "2m", "-o", "json")
    assert (run.code, run.data["ok"], run.data["artifact"]) == (0, True, ART)
    assert tcctl.client.calls == [
        ("verify", ("x",), {"node": "n2", "timeout": 120.0, "check": False})
    ]


def test_verify_of_damaged_bytes_shows_all_operations_and_fails(tcctl: Tcctl) -> None:
    good, bad = Answers(), Answers()
    good.info = operation(kind="verify", node=NodeId("n1"))
    fault = FaultInfo(kind="not_found", detail="The file is gone.", retryable=False)
    bad.info = operation(kind="verify", node=NodeId("n2"), status="failed", fault=fault)
    tcctl.client = FakeClient(Answers(artifact=artifact()), verify=(good, bad))
    run = tcctl("artifact", "verify", "x", "-o", "json")
    assert (run.code, run.data["ok"], run.data["artifact"]) == (1, False, ART)
    assert [one["status"] for one in run.data["operations"]] == ["succeeded", "failed"]
    assert (run.error["code"], run.error["node"]) == ("failed", "n2")
    assert "The file is gone." in run.error["message"]
    text = tcctl("artifact", "verify", "x")
    assert (text.code, "n1" in text.out, "n2" in text.out) == (1, True, True)


def test_verify_tells_the_tiers() -> None:
    def replica(node: str, tier: Tier, state: str = "ready") -> ReplicaInfo:
        return ReplicaInfo(
            node=NodeId(node), tier=tier, state=state, chunks_ready=1, chunks_total=1
        )

    checked = [operation(kind="verify", node=NodeId(node)) for node in ("n2", "n2", "n1", "n1")]
    replicas = [
        replica("n1", Tier.DRAM),
        replica("n2", Tier.DRAM),
        replica("n2", Tier.DISK),
        replica("n1", Tier.DISK, "gone"),
    ]
    assert describe_places(checked, replicas) == "n2 (disk, dram), n1 (2 replicas)"
    assert describe_places(checked[3:], replicas) == "n1 (dram)"
    assert describe_places(checked[3:], ()) == "n1"
