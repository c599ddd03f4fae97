"""Global options, exit codes, and how errors are told."""

from __future__ import annotations

import io
import os
import signal
from pathlib import Path

import msgspec
import pytest

from cli_samples import ART, FAULT, Answers, FakeClient, Tcctl, artifact, event, operation
from tensorcast.cli.main import guess_output, main
from tensorcast.cli.output import Format
from tensorcast.cli.session import World
from tensorcast.schema.errors import Conflict, NotFound, Timeout, Unavailable

LOST = NotFound("There is no artifact 'x'.", hint="`tcctl artifact ls` shows what there is.")


@pytest.mark.parametrize(
    "line",
    [
        "-o json artifact show x",
        "artifact -o json show x",
        "artifact show x -o json",
        "artifact show -o json x",
        "artifact show x --output=json",
        "artifact show x -ojson",
        "-o yaml artifact -o table show x -o json",
    ],
)
def test_global_options_stand_anywhere_and_the_last_one_counts(tcctl: Tcctl, line: str) -> None:
    tcctl.answer(artifact=artifact())
    run = tcctl(*line.split())
    assert (run.code, run.err) == (0, "")
    assert run.data["id"] == ART


@pytest.mark.parametrize("line", ["--context lab artifact show x", "artifact show x --context lab"])
def test_the_context_reaches_the_client(tcctl: Tcctl, line: str) -> None:
    tcctl.answer(artifact=artifact())
    assert tcctl(*line.split()).code == 0
    assert tcctl.contexts == [("lab", None)]


def test_without_a_command_the_help_is_shown(tcctl: Tcctl) -> None:
    run = tcctl()
    assert run.code == 0
    for name in ("up", "artifact", "audit", "replay", "--context", "--no-color"):
        assert name in run.out


@pytest.mark.parametrize("line", ["--version", "artifact ls --version"])
def test_version(tcctl: Tcctl, line: str) -> None:
    run = tcctl(*line.split())
    assert run.code == 0
    assert run.out.startswith("tcctl ")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("bogus", "No such command 'bogus'"),
        ("artefact ls", "Did you mean 'artifact'?"),
        ("artifact", "Missing command"),
        ("artifact show", "Missing argument 'KEY|ID'"),
        ("artifact ls --bogus", "No such option: --bogus"),
        ("artifact ls --limit x", "--limit"),
        ("artifact ls -o xml", "xml"),
        ("replicate m", "Missing option '--to'"),
        ("replay --to yesterday", "'yesterday' is no position in the log and no time"),
        ("put m --label step", "'step' is no label"),
    ],
)
def test_wrong_usage_is_one_sentence_and_exit_2(tcctl: Tcctl, line: str, words: str) -> None:
    run = tcctl(*line.split())
    assert run.code == 2
    assert run.out == ""
    assert words in run.err
    assert run.err.count("\n") == 1


def test_a_number_out_of_range_is_told_in_a_sentence(tcctl: Tcctl) -> None:
    message = tcctl("up", "--nodes", "-1", "-o", "json").error["message"]
    assert message.endswith(".")
    assert not message.endswith("..")


def test_wrong_usage_is_an_object_when_json_is_asked_for(tcctl: Tcctl) -> None:
    run = tcctl("artifact", "ls", "--bogus", "-o", "json")
    assert run.code == 2
    assert run.error["code"] == "usage"
    assert "tcctl artifact ls --help" in run.error["hint"]


@pytest.mark.parametrize(
    ("error", "code"),
    [(LOST, 3), (Conflict("moved"), 4), (Timeout("late"), 5), (Unavailable("away"), 6)],
)
def test_errors_of_the_cluster_have_their_exit_codes(
    tcctl: Tcctl, error: Exception, code: int
) -> None:
    tcctl.answer(artifact=error)
    run = tcctl("artifact", "show", "x")
    assert (run.code, run.out) == (code, "")
    assert run.err == f"Error: {error}\n"


def test_a_cluster_that_cannot_be_reached_is_exit_6(tcctl: Tcctl) -> None:
    tcctl.client = Unavailable("No cluster is known.", hint="Run `tcctl up`.")
    assert tcctl("node", "ls").code == 6


@pytest.mark.parametrize("output", ["json", "ndjson", "yaml"])
def test_errors_are_objects_for_machines(tcctl: Tcctl, output: str) -> None:
    import yaml

    tcctl.answer(artifact=LOST)
    run = tcctl("artifact", "show", "x", "-o", output)
    assert (run.code, run.out) == (3, "")
    assert yaml.safe_load(run.err)["error"] == {
        "code": "not_found",
        "message": LOST.message,
        "hint": LOST.hint,
    }


def test_nobody_sees_a_traceback(
    tcctl: Tcctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    tcctl.answer(artifact=ZeroDivisionError("oh"))
    run = tcctl("artifact", "show", "x")
    assert run.code == 1
    assert "Traceback" not in run.err
    assert "ZeroDivisionError: oh" in run.err
    (log,) = tmp_path.glob("tcctl-*.log")
    assert str(log) in run.err
    assert "Traceback" in log.read_text()


def test_the_traceback_is_shown_when_asked_for(
    tcctl: Tcctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    tcctl.environ["TENSORCAST_DEBUG"] = "1"
    tcctl.answer(artifact=ZeroDivisionError("oh"))
    assert "Traceback" in tcctl("artifact", "show", "x").err


def test_an_interruption_is_quiet(tcctl: Tcctl) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    tcctl.answer(artifact=interrupt, audit=interrupt)
    for line in ("artifact show x", "audit log"):
        run = tcctl(*line.split())
        assert (run.code, run.out, run.err) == (130, "", "")


def test_a_termination_is_an_interruption(tcctl: Tcctl) -> None:
    before = signal.getsignal(signal.SIGTERM)
    tcctl.answer(artifact=lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    run = tcctl("artifact", "show", "x")
    assert (run.code, run.out, run.err) == (130, "", "")
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("output", ["json", "ndjson", "yaml", "table"])
def test_bytes_that_are_not_text_are_printed_all_the_same(tcctl: Tcctl, output: str) -> None:
    tcctl.client = NotFound("There is no node '\udcff'.", node="\udcff")
    run = tcctl("artifact", "show", "x", "-o", output)
    assert run.code == 3
    tcctl.answer(artifact=artifact(labels={"from": "\udcff"}))
    assert tcctl("artifact", "show", "x", "-o", output).code == 0


@pytest.mark.parametrize(
    "line",
    [
        ("put", "a", "--label", "a=\udcff"),
        ("put", "a", "--label", "\udcff=a"),
        ("put", "a", "--key", "\udcff"),
        ("get", "\udcff", "x"),
        ("artifact", "show", "\udcff"),
        ("key", "set", "\udcff", "0" * 64),
    ],
)
def test_arguments_that_are_not_text_are_refused(line: tuple[str, ...], tmp_path: Path) -> None:
    environ = {"TENSORCAST_NATS_URL": "nats://127.0.0.1:9", "TENSORCAST_SOCKET": str(tmp_path)}
    (tmp_path / "a.safetensors").write_bytes(b"")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(name, value)
        patch.chdir(tmp_path)
        err = io.StringIO()
        code = main(line, World(out=io.StringIO(), err=err))
    assert (code, err.getvalue().count("\n")) == (2, 1)
    assert "\\udcff" in err.getvalue()


def test_a_closed_pipe_is_quiet() -> None:
    """The reader of the pipe has gone after the first line, as `head` does."""
    reading, writing = os.pipe()
    os.close(reading)
    err = io.StringIO()
    client = FakeClient(Answers(audit=[event(1, "node.cordoned", {"node": "n1"})]))
    with open(writing, "w") as out:
        world = World(connect=lambda *_: client, environ={}, out=out, err=err)
        assert main(["audit", "log", "-o", "ndjson"], world) == 0
    assert err.getvalue() == ""


@pytest.mark.parametrize(
    ("line", "output"),
    [
        ("artifact ls", Format.TABLE),
        ("artifact ls -o json", Format.JSON),
        ("artifact ls --output=yaml", Format.YAML),
        ("-ondjson artifact ls", Format.NDJSON),
        ("artifact ls -o nothing", Format.TABLE),
        ("artifact ls -o", Format.TABLE),
        ("put -- -o json", Format.TABLE),
    ],
)
def test_the_output_of_a_line_that_does_not_parse_is_guessed(line: str, output: Format) -> None:
    assert guess_output(line.split()) is output


def test_errors_after_the_data(tcctl: Tcctl) -> None:
    """An answer that carries an error is printed whole, then the error, then its exit code."""
    failed = operation(status="failed", fault=FAULT)
    handle = Answers(wait=failed)
    handle.artifact, handle.kind, handle.node, handle.info, handle.status = (
        ART,
        "materialize",
        "n2",
        failed,
        "failed",
    )
    tcctl.client = FakeClient(Answers(artifact=artifact()), operation=handle)
    run = tcctl("op", "watch", failed.id, "-o", "json")
    assert run.code == 1
    assert run.data["fault"] == msgspec.to_builtins(FAULT)
    assert run.error["code"] == "failed"
    assert run.error["operation"] == failed.id
