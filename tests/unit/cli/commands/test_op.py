from __future__ import annotations

import pytest

from cli_samples import ART, FAULT, OPERATION, Answers, FakeClient, Tcctl, artifact, operation
from tensorcast.schema.api import OperationInfo
from tensorcast.schema.errors import Rejected, Timeout, Unavailable

FIELDS = {
    *("id", "kind", "node", "artifact", "status", "attempt", "bytes_moved", "transports"),
    *("cause", "fault", "issued_at", "ended_at"),
}


def watched(info: OperationInfo, *, outcome: object = None) -> FakeClient:
    """A client whose operation ends as `info`; `outcome` is what waiting for it raises."""
    handle = Answers(wait=outcome or info)
    handle.artifact, handle.kind, handle.node = info.artifact, info.kind, info.node
    handle.info, handle.status = info, info.status
    api = Answers(artifact=artifact(), operation=info, retry=None)
    return FakeClient(api, operation=handle)


def test_show_has_the_fields_of_the_interface(tcctl: Tcctl) -> None:
    tcctl.answer(operation=operation(status="failed", fault=FAULT))
    data = tcctl("op", "show", OPERATION, "-o", "json").data
    assert set(data) >= FIELDS
    assert set(data["fault"]) == {"kind", "detail", "retryable"}


def test_ls_filters(tcctl: Tcctl) -> None:
    api = tcctl.answer(operations=(operation(),))
    run = tcctl("op", "ls", "--artifact", "m", "--node", "n2", "--status", "failed", "-q")
    assert run.out == f"{OPERATION}\n"
    assert api.calls[0][2] == {"artifact": "m", "node": "n2", "status": "failed", "limit": 1000}


def test_watch_until_it_succeeded(tcctl: Tcctl) -> None:
    tcctl.client = watched(operation())
    run = tcctl("op", "watch", OPERATION, "-o", "json")
    assert (run.code, run.data["status"], run.err) == (0, "succeeded", "")


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_watch_of_one_that_does_not_succeed_is_a_failure(tcctl: Tcctl, status: str) -> None:
    info = operation(status=status, fault=FAULT if status == "failed" else None)
    tcctl.client = watched(info, outcome=Unavailable("no source", operation=OPERATION))
    run = tcctl("op", "watch", OPERATION)
    assert run.code == 1
    assert status in run.out
    assert f"tcctl op retry {OPERATION[:15]}" in run.err


def test_watch_that_takes_too_long_is_exit_5(tcctl: Tcctl) -> None:
    tcctl.client = watched(operation(status="running"), outcome=Timeout("late"))
    run = tcctl("op", "watch", OPERATION, "--timeout", "1s")
    assert (run.code, run.out) == (5, "")


def test_cancel(tcctl: Tcctl) -> None:
    api = tcctl.answer(cancel=None, operation=operation(status="cancelled"))
    assert "is cancelled" in tcctl("op", "cancel", "op-01", "--reason", "a mistake").out
    assert api.calls[0] == ("cancel", ("op-01",), {"reason": "a mistake"})


def test_cancel_of_one_that_ended_is_a_conflict(tcctl: Tcctl) -> None:
    tcctl.answer(cancel=Rejected("It has ended."))
    assert tcctl("op", "cancel", OPERATION).code == 4


def test_retry_and_wait(tcctl: Tcctl) -> None:
    tcctl.client = watched(operation(attempt=2))
    assert "attempt 2" in tcctl("op", "retry", OPERATION).out
    assert tcctl("op", "retry", OPERATION, "--wait", "-o", "json").data["artifact"] == ART
