"""A suite of small workers, played by the real harness."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from harness.catalog import Contender, Suite, Work
from harness.guard import PREFIX, find_marked
from harness.install import Environments
from harness.processes import find_tree
from harness.results import SuiteResult
from harness.rounds import run_suite

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
SIZE = 1 << 20
WORKS = (
    Work("first", "the first", SIZE, "both"),
    Work("second", "the second", SIZE // 2, "both"),
    Work("alone", "another", SIZE, "alone"),
)


def contender(name: str, worker: str = "Copier", **more: object) -> Contender:
    options = {name: value for name, value in more.items() if name in ("fails", "damages")}
    rest = {name: value for name, value in more.items() if name not in options}
    return Contender(name, "peer", "tcp", f"bench_workers:{worker}", **{"options": options, **rest})


def play(tmp_path: Path, *contenders: Contender, rounds: int = 2, **more: object) -> SuiteResult:
    environments = Environments(tmp_path / "cache")
    tests = Path(__file__).parents[1]
    ours = environments.environ
    environments.environ = lambda name: {
        **ours(name),
        "PYTHONPATH": f"{ours(name)['PYTHONPATH']}:{tests}",
    }
    suite = Suite(
        "s", "small", more.get("works", WORKS), contenders, SIZE, SIZE, unlisted=(("x", "why"),)
    )
    said: list[str] = []
    result = run_suite(
        suite, environments, rounds=rounds, seed=1, logs=tmp_path / "logs", say=said.append
    )
    assert said
    return result


def test_every_work_of_everybody_is_played_in_every_round(tmp_path: Path) -> None:
    found = play(tmp_path, contender("a"), contender("b", works=("alone",), rests=True))
    played = sorted((s.contender, s.work, s.turn) for s in found.samples)
    assert played == [
        *[("a", work, turn) for work in ("alone", "first", "second") for turn in (1, 2)],
        *[("b", "alone", turn) for turn in (1, 2)],
    ]
    one = found.samples[0]
    assert (one.p50_us, one.p99_us, one.facts) == (5.0, 9.0, {"own_mib": 3.0})
    assert [entrant.version for entrant in found.entrants] == ["7", "7"]
    assert found.works == {work.name: work.text for work in WORKS}
    assert [(one.contender, one.why) for one in found.not_run] == [("x", "why")]
    assert (tmp_path / "logs" / "closed.log").read_text() == "closed\n" * 2


def test_who_fails_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    found = play(
        tmp_path,
        contender("good"),
        contender("no start", fails="start"),
        contender("no file", worker="Nobody"),
        contender("no environment", environment="ucxx"),
        contender("wrong bytes", damages=True),
        contender("breaks late", fails="second 2"),
    )
    why = {(one.contender, one.work): one.why for one in found.not_run}
    assert "it will not start" in why["no start", None]
    assert "AttributeError" in why["no file", None]
    assert "scripts/bench --install ucxx" in why["no environment", None]
    assert "the first one at 1048575" in why["wrong bytes", "alone"]
    assert "it broke" in why["breaks late", "second"]
    samples = [(s.contender, s.work) for s in found.samples]
    assert not [work for name, work in samples if name == "wrong bytes"]
    assert samples.count(("good", "first")) == 2
    assert samples.count(("breaks late", "first")) == 2
    assert samples.count(("breaks late", "second")) == 1


def test_cpu_is_that_of_the_whole_tree_until_all_is_over(tmp_path: Path) -> None:
    works = (Work("burn", "", SIZE, "burn", is_compared=False),)
    found = play(tmp_path, contender("a", worker="Burner"), rounds=1, works=works)
    (sample,) = found.samples
    assert 0.28 < sample.cpu_s < 0.8  # the child that ended (with its start), itself, the other
    assert (sample.seconds, sample.bytes) == (0.3, 300)
    assert not os.path.exists(f"/proc/{int(sample.facts['pid'])}")


@pytest.mark.parametrize("worker", ["Sleeper", "Deserter"])
def test_nothing_is_left_running(tmp_path: Path, worker: str) -> None:
    before = set(find_tree(os.getpid()))
    here = set(Path(tempfile.gettempdir()).glob(f"{PREFIX}*"))
    works = (Work("nothing", "", SIZE, "nothing", is_compared=False),)
    found = play(tmp_path, contender("a", worker=worker, timeout_s=0.3), rounds=1, works=works)
    assert found.samples == []
    assert set(find_tree(os.getpid())) <= before
    assert set(Path(tempfile.gettempdir()).glob(f"{PREFIX}*")) <= here


def test_a_harness_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    code = f"""
import subprocess, sys, time
sys.path.insert(0, {str(BENCHMARKS)!r})
from harness.guard import guarded_folder
with guarded_folder() as folder:
    command = [sys.executable, "-c", "import time; time.sleep(600)", str(folder)]
    subprocess.Popen(command, start_new_session=True)
    print(folder, flush=True)
    time.sleep(600)
"""
    harness = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    folder = Path(harness.stdout.readline().strip())
    assert len(find_marked(str(folder))) == 2  # the guard and the deserter
    harness.kill()
    harness.wait()
    harness.stdout.close()
    deadline = time.monotonic() + 10
    while (folder.exists() or find_marked(str(folder))) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not folder.exists()
    assert find_marked(str(folder)) == []
