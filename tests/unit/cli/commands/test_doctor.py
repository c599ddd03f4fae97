from __future__ import annotations

from pathlib import Path

from cli_samples import Tcctl


def test_the_checks_of_this_machine(tcctl: Tcctl, tmp_path: Path) -> None:
    tcctl.environ["TENSORCAST_CONFIG_DIR"] = str(tmp_path / "config")
    run = tcctl("doctor", "--data-dir", str(tmp_path), "-o", "json")
    failed = [one for one in run.data if one["state"] == "fail"]
    assert run.code == (1 if failed else 0)
    assert all(set(one) == {"name", "state", "found", "mend"} for one in run.data)
    assert all(one["mend"] for one in failed)
    text = tcctl("doctor", "--data-dir", str(tmp_path)).out
    assert text.splitlines()[0].split() == ["CHECK", "STATE", "FOUND", "MEND"]
