"""Environments are found, stamped and explained; nothing is downloaded here."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from harness import install
from harness.install import Environments, explain, known_peers, requirements


def test_every_list_is_whole_and_pinned() -> None:
    assert known_peers()[0] == "debian"
    for name in known_peers()[1:]:
        lines = requirements(name).read_text().split()
        assert lines
        assert all(line.count("==") == 1 for line in lines), name


def test_a_peer_is_missing_until_it_is_installed(tmp_path: Path) -> None:
    environments = Environments(tmp_path)
    assert environments.missing("") == ""
    assert "scripts/bench --install ray" in environments.missing("ray")
    environments.folder("ray").mkdir(parents=True)
    (environments.folder("ray") / "installed").write_text(requirements("ray").read_text())
    assert environments.missing("ray") == ""
    (environments.folder("ray") / "installed").write_text("ray==1")
    assert environments.missing("ray")


def test_an_install_goes_on_where_it_was_and_names_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def install_one(name: str, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if name == "ucxx":
            raise subprocess.CalledProcessError(1, "pip", stderr="a\nERROR: no such wheel\n\n")
        done.append(name)

    monkeypatch.setattr(install, "install_one", install_one)
    environments = Environments(tmp_path)
    said: list[str] = []
    assert environments.install(["nixl", "ucxx", "ray"], said.append) == ["ucxx"]
    assert environments.missing("ucxx") == "it cannot be installed here: ERROR: no such wheel"
    assert environments.install(["nixl", "ray"], said.append) == []
    assert done == ["nixl", "ray"]
    assert "nixl is installed" in said


def test_workers_see_the_benchmarks_and_the_libraries(tmp_path: Path) -> None:
    environ = Environments(tmp_path).environ("mooncake")
    assert Path(environ["PYTHONPATH"], "harness", "worker.py").exists()
    assert environ["LD_LIBRARY_PATH"].startswith(str(tmp_path / "debian"))
    assert Environments(tmp_path).python("mooncake").endswith("environments/mooncake/bin/python")


def test_an_error_without_words_has_its_name() -> None:
    assert explain(OSError()) == "OSError"
