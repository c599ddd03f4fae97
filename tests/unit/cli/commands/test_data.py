"""`put`, `get` and `replicate` against a client that only answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cli_samples import ART, FAULT, OPERATION, Answers, FakeClient, Tcctl, artifact, operation
from tensorcast.client.export import Written
from tensorcast.schema.api import ReplicasProgress
from tensorcast.schema.errors import Conflict, InvalidArgument, Timeout, Unavailable
from tensorcast.schema.ids import EventId, NodeId
from tensorcast.schema.tensors import TensorSpec
from tensorcast.schema.views import View

INDEX = (TensorSpec(name="w", dtype="F32", shape=(256,), offset=64),)


def sealed() -> Answers:
    handle = Answers()
    handle.id, handle.kind, handle.labels, handle.index = ART, "weights", {"step": "1"}, INDEX
    return handle


def test_put(tcctl: Tcctl) -> None:
    tcctl.client = FakeClient(put=sealed())
    run = tcctl("put", "a", "b", "--key", "k", "--label", "step=1", "--node", "n2", "-o", "json")
    assert run.code == 0
    assert set(run.data) >= {"id", "key", "kind", "bytes", "tensors", "labels", "seconds"}
    assert (run.data["id"], run.data["bytes"], run.data["tensors"]) == (ART, 1088, 1)
    (_, (paths,), options) = tcctl.client.calls[0]
    assert paths == ["a", "b"]
    assert (options["key"], options["labels"], options["expect"]) == ("k", {"step": "1"}, None)
    assert tcctl.contexts == [(None, "n2")]
    assert tcctl("put", "a", "-q").out == f"{ART}\n"


def test_content_that_was_there_keeps_its_kind_and_labels(tcctl: Tcctl) -> None:
    tcctl.client = FakeClient(put=sealed())
    run = tcctl("put", "a", "--kind", "adapter", "--label", "step=2", "-o", "json")
    assert (run.code, run.data["kind"], run.data["labels"]) == (0, "weights", {"step": "1"})
    assert "keeps its kind weights and labels step=1." in run.err
    assert tcctl("put", "a", "--label", "step=1").err == ""
    assert tcctl("put", "a").err == ""


def test_put_expects_what_an_abbreviation_stands_for(tcctl: Tcctl) -> None:
    tcctl.client = FakeClient(Answers(artifact=artifact()), put=sealed())
    assert tcctl("put", "a", "--key", "k", "--expect", ART[:8]).code == 0
    assert tcctl.client.calls[0][2]["expect"] == ART


def test_put_to_a_key_of_somebody_else_is_a_conflict(tcctl: Tcctl) -> None:
    tcctl.client = FakeClient(put=Conflict("The key points elsewhere."))
    assert tcctl("put", "a", "--key", "k").code == 4


def test_get(tcctl: Tcctl, tmp_path: Path) -> None:
    path = tmp_path / "out.safetensors"
    path.write_bytes(b"x" * 100)
    tcctl.client = FakeClient(write_file=Written(ART, str(path)))
    line = ["get", "k", str(path), "--view", "names=w", "--force", "--timeout", "9"]
    run = tcctl(*line, "-o", "json")
    assert (run.code, run.data["bytes"], run.data["path"]) == (0, 100, str(path))
    assert run.data["artifact"] == ART
    (_, called, options) = tcctl.client.calls[0]
    assert called == ("k", str(path))
    assert (options["view"], options["force"], options["timeout"]) == (View.tensors("w"), True, 9)


def test_get_with_a_view_that_makes_no_sense(tcctl: Tcctl) -> None:
    assert tcctl("get", "k", "x", "--view", "what").code == 2


def test_get_over_a_file_that_exists(tcctl: Tcctl) -> None:
    tcctl.client = FakeClient(write_file=InvalidArgument("It exists.", hint="Use --force."))
    assert tcctl("get", "k", "x").code == 2


def make_replication(status: str, wait: object = None) -> Answers:
    handle = Answers(wait=wait)
    handle.id, handle.artifact, handle.status = EventId("e-1"), ART, status
    handle.nodes, handle.node = (NodeId("n2"),), "n2"
    info = operation(status=status, fault=FAULT if status == "failed" else None)
    handle.progress = ReplicasProgress(
        done=status != "running",
        ready=(NodeId("n2"),) if status == "succeeded" else (),
        operations=(info,),
        failed=(info,) if status == "failed" else (),
        bytes_ready=1,
        bytes_total=3,
    )
    return handle


def replicating(handle: Answers) -> FakeClient:
    return FakeClient(replicate=handle)


def test_replicate_returns_at_once(tcctl: Tcctl) -> None:
    handle = make_replication("issued")
    handle.progress = None
    tcctl.client = replicating(handle)
    run = tcctl("replicate", "m", "--to", "n2, n3", "--tier", "disk", "-o", "json")
    assert (run.code, run.data["state"], run.data["request"]) == (0, "issued", "e-1")
    assert tcctl.client.calls == [("replicate", ("m",), {"to": ("n2", "n3"), "tier": "disk"})]
    assert handle.calls == []


def test_replicate_and_wait(tcctl: Tcctl) -> None:
    handle = make_replication("succeeded")
    tcctl.client = replicating(handle)
    run = tcctl("replicate", "m", "--to", "all", "--wait", "--timeout", "9s")
    assert run.code == 0
    assert "succeeded" in run.out
    assert tcctl.client.calls[0][2]["to"] == "all"
    assert handle.calls[0][1] == (9.0,)
    assert tcctl("replicate", "m", "--to", "all", "--wait", "-q").out == f"{OPERATION}\n"


def test_replicate_and_wait_shows_operations_as_they_ended(tcctl: Tcctl) -> None:
    handle = make_replication("running")
    handle.status = "succeeded"
    ended = operation(status="succeeded")
    tcctl.client = FakeClient(Answers(wait_operation=ended), replicate=handle)
    run = tcctl("replicate", "m", "--to", "n2", "--wait", "-o", "json")
    assert [one["status"] for one in run.data["operations"]] == ["succeeded"]


def test_replicas_that_cannot_be_made_are_a_failure(tcctl: Tcctl) -> None:
    tcctl.client = replicating(make_replication("failed", Unavailable("No source.")))
    run = tcctl("replicate", "m", "--to", "n2", "--wait", "-o", "json")
    assert (run.code, run.out) == (1, "")
    assert run.error == {"code": "failed", "message": "No source.", "hint": ""}


def test_replicas_that_take_too_long_are_exit_5(tcctl: Tcctl) -> None:
    tcctl.client = replicating(make_replication("running", Timeout("late")))
    assert tcctl("replicate", "m", "--to", "n2", "--wait").code == 5


def test_a_control_plane_that_is_gone_is_exit_6(tcctl: Tcctl) -> None:
    tcctl.client = replicating(make_replication("running", Unavailable("gone")))
    assert tcctl("replicate", "m", "--to", "n2", "--wait").code == 6


def test_progress_is_shown_on_a_terminal_only(tcctl: Tcctl) -> None:
    def wait(_: float, *, report: Callable[[ReplicasProgress], None]) -> None:
        report(make_replication("running").progress)

    for is_terminal, options, shown in (
        (True, (), True),
        (True, ("-q",), False),
        (False, (), False),
    ):
        tcctl.is_terminal = is_terminal
        tcctl.client = replicating(make_replication("succeeded", wait))
        run = tcctl("replicate", "m", "--to", "n2", "--wait", *options)
        assert run.code == 0
        assert ("replicate to n2" in run.err) == shown
