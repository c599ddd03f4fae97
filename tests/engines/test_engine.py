"""A real vLLM with our plugin in it serves the tiny model."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import engine

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.timeout(400)]
PROMPT = "the quick brown fox jumps over the lazy dog " * 20


@pytest.fixture(scope="module")
def plain(start_engine, tiny):
    return start_engine(tiny)


def test_the_plugin_is_in_the_process_of_the_engine(plain):
    said = f"is at hand in process {plain.core_pid()} of vLLM"
    assert said in plain.log_text()


def test_what_it_generates_is_the_same_each_time_and_depends_on_the_prompt(plain):
    first = plain.generate(PROMPT, logprobs=True)
    again = plain.generate(PROMPT, logprobs=True)
    assert len(first.tokens) == len(first.logprobs) == 16
    assert first.tokens == again.tokens
    assert first.tokens != plain.generate("X" + PROMPT).tokens
    assert len(set(first.tokens)) > 8, "a model that repeats itself shows no damage"


def test_token_ids_are_as_good_as_text(plain):
    assert plain.generate(plain.token_ids(PROMPT)).tokens == plain.generate(PROMPT).tokens


def test_a_prefix_is_kept_and_counted(plain):
    before = plain.metrics()
    plain.generate("Y" + PROMPT)
    cached = plain.generate("Y" + PROMPT).cached_tokens
    assert cached >= 128
    after = plain.metrics()
    name = "vllm:prefix_cache_hits_total"
    assert after.total(name) - before.total(name) == cached


def test_an_engine_ends_with_the_run_that_started_it(tiny, tmp_path):
    """However the run ends, and in the middle of the engine's start too."""
    code = (
        "import os, pathlib, signal, sys, engine;"
        "one = engine.launch(sys.argv[1], pathlib.Path(sys.argv[2]));"
        "print(one.pid, flush=True);"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    command = [sys.executable, "-P", "-c", code, str(tiny), str(tmp_path)]
    path = str(Path(engine.__file__).parent)
    killed = subprocess.run(command, env={"PYTHONPATH": path}, capture_output=True, check=False)
    group = int(killed.stdout)
    deadline = time.monotonic() + 20
    while is_running(group) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(group)


def is_running(group: int) -> bool:
    """Whether any process of a group is left that is more than a zombie."""
    processes = (name for name in os.listdir("/proc") if name.isdigit())
    return any(state_of(name) not in ("", "Z") for name in processes if group_of(name) == group)


def stat_of(name: str) -> list[str]:
    try:
        return Path(f"/proc/{name}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return ["", "", "-1"]


def state_of(name: str) -> str:
    return stat_of(name)[0]


def group_of(name: str) -> int:
    return int(stat_of(name)[2])
