from __future__ import annotations

from pathlib import Path

import pytest

from cli_samples import Tcctl
from tensorcast.client.context import Context, NodeContext
from tensorcast.deploy.context import write_context


@pytest.fixture
def folder(tcctl: Tcctl, tmp_path: Path) -> Path:
    """A user's folder with two contexts, the second in use, and a file that is none."""
    for name in ("one", "two"):
        nodes = {"n1": NodeContext(socket="/s/n1")}
        context = Context(cluster=name, nats_url="nats://h", home=f"/home/{name}", nodes=nodes)
        write_context(tmp_path, name, context)
    (tmp_path / "contexts" / "broken.json").write_text("{")
    tcctl.environ["TENSORCAST_CONFIG_DIR"] = str(tmp_path)
    return tmp_path


def test_ls_marks_the_one_in_use_and_says_what_cannot_be_read(tcctl: Tcctl, folder: Path) -> None:
    found = {one["name"]: one for one in tcctl("context", "ls", "-o", "json").data}
    assert [name for name, one in found.items() if one["current"]] == ["two"]
    assert found["one"]["nodes"] == ["n1"]
    assert "is not a context" in found["broken"]["problem"]
    assert "two *" in tcctl("context", "ls").out
    assert tcctl("context", "ls", "-q").out.split() == ["broken", "one", "two"]


def test_use_changes_it_and_refuses_what_is_not_there(tcctl: Tcctl, folder: Path) -> None:
    assert "one is in use" in tcctl("context", "use", "one").out
    assert tcctl("context", "show", "-q").out == "one\n"
    assert (folder / "current").stat().st_mode & 0o077 == 0
    assert tcctl("context", "use", "three").code == 3
    assert tcctl("context", "use", "broken").code == 2
    assert tcctl("context", "show", "-q").out == "one\n"


def test_use_says_when_the_environment_comes_first(tcctl: Tcctl, folder: Path) -> None:
    tcctl.environ["TENSORCAST_CONTEXT"] = "two"
    assert "comes first" in tcctl("context", "use", "one").out


def test_show_names_where_a_context_leads(tcctl: Tcctl, folder: Path) -> None:
    assert "/home/one" in tcctl("context", "show", "one").out
    assert tcctl("context", "show", "-o", "json").data["cluster"] == "two"
    assert tcctl("context", "show", "--context", "one", "-q").out == "one\n"
    assert tcctl("context", "show", "three").code == 3


def test_where_there_is_none_it_says_so(tcctl: Tcctl, tmp_path: Path) -> None:
    tcctl.environ["TENSORCAST_CONFIG_DIR"] = str(tmp_path)
    assert "tcctl up" in tcctl("context", "ls").out
    assert tcctl("context", "show").code == 3
