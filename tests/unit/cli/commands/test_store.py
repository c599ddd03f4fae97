from __future__ import annotations

import msgspec
import pytest

from cli_samples import Tcctl
from samples import BEGIN
from tensorcast.cli.commands import store
from tensorcast.schema.api_store import ArchiveInfo, JobInfo
from tensorcast.schema.ids import Seq

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


FILE = ArchiveInfo(
    log_epoch=1,
    first=Seq(1),
    last=Seq(9),
    path="/old/c-1-000000000001-000000000009.parquet",
    bytes=2048,
    at_first=BEGIN,
    at_last=BEGIN,
    made_at=BEGIN,
    is_dropped=True,
)
MOVED = msgspec.structs.replace(ENDED, name="archive")


def test_archive_tells_how_many_events_went(tcctl: Tcctl) -> None:
    api = tcctl.answer(start_job=(MOVED,), archives=(FILE,))
    run = tcctl("store", "archive", "--before", "10", "--to", "/old")
    assert run.out == "9 events were moved into files.\n"
    _, _, named = api.calls[0]
    assert named == {"before_seq": 10, "before_time": None, "folder": "/old"}
    api = tcctl.answer(start_job=(MOVED,), archives=(FILE,))
    assert tcctl("store", "archive", "--before", "30d", "-o", "json").data[0]["last"] == 9
    _, _, named = api.calls[0]
    assert named["before_seq"] is None
    assert named["before_time"] is not None
    nothing = msgspec.structs.replace(MOVED, done=0, phase="moved nothing: all are young")
    tcctl.answer(start_job=(nothing,), archives=())
    told = tcctl("store", "archive", "--before", "10").out
    assert told.startswith(
        "The archive moved nothing: all are young. Events go by whole partitions"
    )


def test_an_archive_that_failed_says_what_is_left(tcctl: Tcctl) -> None:
    tcctl.answer(start_job=(msgspec.structs.replace(MOVED, problem="No room."),))
    run = tcctl("store", "archive", "--before", "10", "-o", "json")
    assert run.error["message"] == "The archive failed: No room."
    assert "is where it was" in run.error["hint"]


def test_archives_lists_the_files_and_what_is_wrong_with_them(tcctl: Tcctl) -> None:
    away = msgspec.structs.replace(FILE, problem="It is not there.")
    api = tcctl.answer(archives=(away,))
    out = tcctl("store", "archives", "--moved-to", "/new").out
    assert "2.0 KiB" in out
    assert "It is not there." in out
    assert api.calls[0][2] == {"moved_to": "/new"}
    tcctl.answer(archives=())
    assert tcctl("store", "archives").out == "No event was ever archived.\n"
