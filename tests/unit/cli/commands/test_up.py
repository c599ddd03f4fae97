"""`up`, `down` and `status` where there is no cluster: what a real one does is tested elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli_samples import Tcctl, node
from tensorcast.deploy import cluster
from tensorcast.deploy.options import UpOptions
from tensorcast.deploy.readiness import Status
from tensorcast.schema.api import ClusterStatus
from tensorcast.schema.errors import NotFound, Unavailable
from tensorcast.schema.ids import Seq

STATUS = ClusterStatus(
    cluster="far", last_seq=Seq(9), committed_seq=Seq(9), scheduled_seq=Seq(9), nodes=(node(),)
)


@pytest.fixture
def home(tcctl: Tcctl, tmp_path: Path) -> Path:
    tcctl.environ["TENSORCAST_CONFIG_DIR"] = str(tmp_path / "config")
    return tmp_path / "home"


def test_status_without_a_cluster_is_down(tcctl: Tcctl, home: Path) -> None:
    tcctl.answer(status=STATUS)  # of the context in use, which is another cluster
    run = tcctl("status", "--data-dir", str(home), "-o", "json")
    assert (run.code, run.err) == (6, "")
    assert set(run.data) >= {"state", "services", "last_seq", "committed_seq"}
    assert (run.data["state"], run.data["services"], run.data["last_seq"]) == ("down", [], None)
    assert "tcctl up" in run.data["problems"][0]
    assert tcctl("status", "--data-dir", str(home), "-q").out == "down\n"


def test_status_of_a_cluster_on_other_machines(tcctl: Tcctl, home: Path) -> None:
    tcctl.answer(status=STATUS)
    run = tcctl("status", "--data-dir", str(home), "--context", "far", "-o", "json")
    assert (run.code, run.data["state"], run.data["last_seq"]) == (0, "up", 9)
    tcctl.environ["TENSORCAST_HOME"] = str(home)
    text = tcctl("status").out
    assert "9 events, 9 of them in Postgres" in text
    assert "127.0.0.1:4000" in text


def test_status_where_no_cluster_is_known(tcctl: Tcctl, home: Path) -> None:
    tcctl.environ["TENSORCAST_HOME"] = str(home)
    tcctl.client = Unavailable("No cluster is known on this machine.", hint="Run `tcctl up`.")
    run = tcctl("status", "-o", "json")
    assert (run.code, run.err, run.data["state"]) == (6, "", "down")


@pytest.mark.parametrize("command", ["status", "down"])
def test_an_unknown_context_is_exit_3(tcctl: Tcctl, home: Path, command: str) -> None:
    tcctl.environ["TENSORCAST_HOME"] = str(home)
    tcctl.client = NotFound("There is no context 'nosuch'.")
    run = tcctl("--context", "nosuch", command)
    assert (run.code, run.out) == (3, "")
    assert "no context 'nosuch'" in run.err


def test_down_without_a_cluster_is_done_already(tcctl: Tcctl, home: Path) -> None:
    run = tcctl("down", "--data-dir", str(home))
    assert run.code == 0
    assert "there is no cluster" in run.out
    assert tcctl("down", "--data-dir", str(home), "-q").out == ""


def test_purge_of_a_folder_that_is_no_home_is_refused(tcctl: Tcctl, home: Path) -> None:
    home.mkdir()
    (home / "thesis.txt").write_text("years of work")
    run = tcctl("down", "--purge", "--yes", "--data-dir", str(home))
    assert run.code == 2
    assert (home / "thesis.txt").exists()


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (("--nodes", "-1"), "--nodes"),
        (("--nodes", "1000"), "0 to 64 nodes"),
        (("--dram", "much"), "no size"),
        (("--dram", "1KiB"), "at least"),
        (("--dram", "1000TiB"), "more than this machine has"),
        (("--disk", "much"), "no size"),
        (("--overflow", "explode"), "--overflow"),
        (("--nats-url", "http://h"), "no URL of a NATS server"),
        (("--cluster", "My Cluster"), "no name for a cluster"),
    ],
)
def test_up_refuses_what_makes_no_sense(
    tcctl: Tcctl, home: Path, option: tuple[str, ...], words: str
) -> None:
    run = tcctl("up", "--data-dir", str(home), *option)
    assert (run.code, run.out) == (2, "")
    assert words in run.err
    assert not home.exists()


@pytest.mark.parametrize(
    ("options", "name"),
    [((), "theirs"), (("--context", "mine"), "mine")],
)
def test_the_context_of_the_environment_is_the_one_that_is_made(
    tcctl: Tcctl,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    name: str,
) -> None:
    asked: list[UpOptions] = []

    def up(options: UpOptions, progress: object) -> Status:
        asked.append(options)
        return Status(state="up")

    monkeypatch.setattr(cluster, "up", up)
    tcctl.environ["TENSORCAST_CONTEXT"] = "theirs"
    assert tcctl("up", "--data-dir", str(home), *options).code == 0
    assert [one.context for one in asked] == [name]


def test_a_number_that_is_none_is_told_in_words(tcctl: Tcctl, home: Path) -> None:
    run = tcctl("up", "--data-dir", str(home), "--nodes", "abc")
    assert "Invalid value for '--nodes': it should be a valid integer. Try" in run.err
