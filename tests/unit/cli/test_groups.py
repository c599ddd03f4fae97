"""The table of commands says the same as the commands, and the help loads none of them."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.core import TyperCommand, TyperGroup

from cli_samples import Tcctl
from tensorcast.cli.groups import COMMANDS, load


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_tells_what_the_command_tells(name: str) -> None:
    command = load(name)
    assert isinstance(command, TyperGroup if COMMANDS[name].is_noun else TyperCommand)
    assert (command.help or "").split("\n")[0] == COMMANDS[name].help


def every_command() -> list[tuple[str, ...]]:
    paths: list[tuple[str, ...]] = []
    for name in COMMANDS:
        command = load(name)
        below = command.commands if isinstance(command, TyperGroup) else {}
        paths += [(name, verb) for verb in below] or [(name,)]
    return paths


@pytest.mark.parametrize("path", every_command(), ids=" ".join)
def test_every_command_has_a_help_and_the_global_options(
    tcctl: Tcctl, path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    run = tcctl(*path, "-o", "json", "-q", "--no-color", "--context", "x", "--help")
    help_text = capsys.readouterr().out + run.out
    assert (run.code, run.err) == (0, "")
    assert f"Usage: tcctl {' '.join(path)}" in help_text
    assert "Global options work here too" in help_text


def test_the_commands_of_the_interface_exist() -> None:
    wanted = """up, down, status, doctor, put, get, replicate, replay,
        artifact ls, artifact show, artifact tensors, artifact where, artifact history,
        artifact verify, artifact pin, artifact unpin, artifact rm,
        key ls, key show, key set, key rm, op ls, op show, op watch, op cancel, op retry,
        node ls, node show, node cordon, node drain, node uncordon,
        audit log, serve controlplane, serve mover"""
    assert {tuple(line.split()) for line in wanted.split(",")} <= set(every_command())


def test_the_help_loads_no_command_and_no_torch() -> None:
    code = """
import sys
from tensorcast.cli.main import main
main(["--help"])
heavy = ("torch", "rich", "nats", "sqlalchemy", "asyncio", "yaml", "tensorcast.client")
print([name for name in heavy if name in sys.modules], file=sys.stderr)
print([name for name in sys.modules if "cli.commands" in name], file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert "artifact" in done.stdout
    assert done.stderr == "[]\n[]\n"
