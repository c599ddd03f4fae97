from __future__ import annotations

import msgspec
import pytest

from cli_samples import Tcctl
from samples import BEGIN
from tensorcast.cli.commands import store
from tensorcast.schema.api_store import JobInfo

BEGUN = JobInfo(
    name="rebuild",
    phase="reads the history",
    done=5,
    total=9,
    problem=None,
    started_at=BEGIN,
    ended_at=None,
    silent_s=0.1,
)
ENDED = msgspec.structs.replace(BEGUN, phase="done", done=9, ended_at=BEGIN)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(store, "POLL_S", 0.0)


def test_rebuild_waits_for_the_end(tcctl: Tcctl) -> None:
    answers = iter([(BEGUN,), (ENDED,)])
    api = tcctl.answer(start_job=(BEGUN,), jobs=lambda: next(answers))
    assert tcctl("store", "rebuild").out == "The read models follow from event 9.\n"
    assert [name for name, *_ in api.calls] == ["start_job", "jobs", "jobs"]
    tcctl.answer(start_job=(BEGUN,))
    assert "reads the history" in tcctl("store", "rebuild", "--no-wait").out


def test_what_went_wrong_is_told(tcctl: Tcctl) -> None:
    failed = msgspec.structs.replace(ENDED, phase="failed", problem="No room.")
    tcctl.answer(start_job=(failed,))
    run = tcctl("store", "rebuild", "-o", "json")
    assert run.code == 1
    assert run.error["message"] == "The rebuild failed: No room."
    silent = msgspec.structs.replace(BEGUN, silent_s=99)
    tcctl.answer(start_job=(silent,), jobs=(silent,))
    assert "was cut off" in tcctl("store", "rebuild").err
    assert "cut off" in tcctl("store", "status").out
