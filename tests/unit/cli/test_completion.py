"""Completion: for a shell that is named, and of the names of contexts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli_samples import Tcctl
from tensorcast.cli.completion import Request, complete_contexts, find_request


@pytest.mark.parametrize(
    ("line", "request_"),
    [
        ("--show-completion zsh", Request("show", "zsh")),
        ("--install-completion=fish", Request("install", "fish")),
        ("--show-completion", None),
        ("--show-completion --quiet", None),
        ("put -- --show-completion zsh", None),
        ("status", None),
    ],
)
def test_requests(line: str, request_: Request | None) -> None:
    assert find_request(line.split()) == request_


@pytest.mark.parametrize(
    ("shell", "words"), [("bash", "COMPREPLY"), ("zsh", "#compdef tcctl"), ("fish", "complete -")]
)
def test_the_script_is_of_the_shell_that_was_named(tcctl: Tcctl, shell: str, words: str) -> None:
    run = tcctl("--show-completion", shell)
    assert (run.code, run.err) == (0, "")
    assert words in run.out


def test_an_unknown_shell_is_wrong_usage(tcctl: Tcctl) -> None:
    run = tcctl("--show-completion", "tcsh")
    assert (run.code, run.out) == (2, "")
    assert "'tcsh' is not a shell" in run.err


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "contexts").mkdir()
    for name in ("lab", "large", "work"):
        (tmp_path / "contexts" / f"{name}.json").touch()
    monkeypatch.setenv("TENSORCAST_CONFIG_DIR", str(tmp_path))
    return tmp_path


def test_contexts_are_completed(config: Path) -> None:
    assert complete_contexts("la") == ["lab", "large"]
    assert complete_contexts("x") == []


@pytest.mark.parametrize("line", ["tcctl --context l", "tcctl status --context l"])
def test_the_shell_gets_the_contexts(config: Path, line: str) -> None:
    environ = {
        **os.environ,
        "_TCCTL_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split()) - 1),
    }
    program = "import sys; from tensorcast.cli.main import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["lab", "large"]
