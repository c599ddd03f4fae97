"""The benchmarks run: a small run of the real program. Nothing about its numbers is tested."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WHO = ("raw tcp", "raw shared memory", "raw memfd", "=tensorcast pull", "raw mmap", "tensorcast, m")


def run(*arguments: str, cache: Path) -> subprocess.CompletedProcess[str]:
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "benchmarks"),
        "TENSORCAST_BENCH_CACHE": str(cache),
    }
    command = [sys.executable, "-P", str(ROOT / "benchmarks" / "bench.py"), *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=100)


@pytest.mark.slow
def test_a_small_run_gives_a_table_a_picture_and_a_file(tmp_path: Path) -> None:
    """One contender of our own with a whole cluster; the others need none."""
    out, picture = tmp_path / "r.json", tmp_path / "r.svg"
    only = [word for name in WHO for word in ("--only", name)]
    suites = ("p2p", "kv", "share", "load")
    done = run(*suites, "--quick", *only, "--out", str(out), cache=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "| **tensorcast pull** |" in done.stdout
    assert not [line for line in done.stdout.splitlines() if line.startswith("* not run")]
    found = json.loads(out.read_text())
    assert list(found["suites"]) == list(suites)
    assert all(suite["samples"] for suite in found["suites"].values())
    done = run("--report", str(out), "--picture", str(picture), cache=tmp_path)
    assert "raw mmap" in picture.read_text()
    assert "### load" in done.stdout


@pytest.mark.slow
def test_a_whole_cluster_takes_part(tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    done = run("kv", "--quick", "--only", "=tensorcast", "--out", str(out), cache=tmp_path)
    assert done.returncode == 0, done.stderr
    samples = json.loads(out.read_text())["suites"]["kv"]["samples"]
    assert len(samples) == 7, done.stderr


def test_what_is_not_known_is_a_usage_error(tmp_path: Path) -> None:
    for arguments in (("fly",), ("--install", "nobody")):
        done = run(*arguments, cache=tmp_path)
        assert done.returncode == 2
        assert "there is no" in done.stderr
