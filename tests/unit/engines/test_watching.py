"""The agent that a plugin starts, as a process that can be looked at."""

from __future__ import annotations

import logging
import os
import stat
import subprocess
import sys

import pytest

from tensorcast.engines.identity import LIFE_VARIABLE, Identity, is_first_process
from tensorcast.engines.vllm import watching
from tensorcast.engines.vllm.plugin import default_port

ENGINE = Identity("e1", "life-1", "http://h:8000")


@pytest.mark.parametrize(
    ("said", "is_wanted"), [("1", True), ("on", True), ("0", False), ("", False)]
)
def test_it_is_started_where_that_is_wanted(said, is_wanted):
    assert watching.is_wanted({watching.WATCH_VARIABLE: said}) is is_wanted
    assert not watching.is_wanted({})


def test_an_engine_without_an_address_is_not_watched(caplog):
    with caplog.at_level(logging.WARNING, logger="vllm.tensorcast"):
        watching.start_agent(ENGINE._replace(url=""), {})
    assert "--port" in caplog.text


def test_it_is_told_whom_it_watches_and_ends_with_the_engine(tmp_path):
    """The interpreter is one that writes down how it was called, and when its input ends."""
    said = tmp_path / "said"
    program = tmp_path / "python"
    program.write_text(
        f'#!/bin/sh\necho "$@" >{said}\ncat\necho "ended $PYTHONSAFEPATH" >>{said}\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    code = (
        "import sys; from tensorcast.engines.vllm import watching as w;"
        f"sys.executable = {str(program)!r};"
        f"w.start_agent(w.Identity{tuple(ENGINE)!r}, {{'PATH': {os.environ['PATH']!r}}})"
    )
    read, write = os.pipe()
    subprocess.run([sys.executable, "-P", "-c", code], check=True, stdout=write)
    os.close(write)
    with os.fdopen(read) as ended:  # the agent has it open too
        ended.read()
    command = "-m tensorcast.engines.vllm.agent http://h:8000 --engine e1 --attached"
    assert said.read_text().splitlines() == [command, "ended 1"]


@pytest.mark.parametrize(
    ("arguments", "port"),
    [
        (["/v/vllm/entrypoints/openai/api_server.py", "--model", "m"], "8000"),
        (["/bin/vllm", "serve", "m"], "8000"),
        (["/bin/vllm", "serve", "m", "--headless"], ""),
        (["mine.py"], ""),
        ([""], ""),
    ],
)
def test_the_port_of_a_server_that_names_none(arguments, port):
    assert default_port(arguments) == port


def test_the_first_process_is_the_one_before_anything_was_said():
    assert is_first_process({})
    assert not is_first_process({LIFE_VARIABLE: "x"})
