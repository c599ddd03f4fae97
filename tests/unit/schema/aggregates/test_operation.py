from typing import get_args

import msgspec
import pytest

from laws import check_law
from samples import N1, artifact_id, event_id, record, record_all
from tensorcast.schema.aggregates.operation import (
    OPEN,
    TRANSITIONS,
    OperationStatus,
    decide,
    evolve,
)
from tensorcast.schema.commands import (
    CancelOperation,
    FailOperation,
    IssueOperation,
    RerouteOperation,
    RetryOperation,
    StartOperation,
    SucceedOperation,
)
from tensorcast.schema.errors import NotFound, Rejected
from tensorcast.schema.events import (
    OperationCancelled,
    OperationEvent,
    OperationFailed,
    OperationIssued,
    OperationRerouted,
    OperationRetried,
    OperationStarted,
    OperationSucceeded,
)
from tensorcast.schema.faults import Fault, FaultKind
from tensorcast.schema.work import Load, Materialize

OP = "op-1"
WORK = Materialize(artifact=artifact_id("a"))
FAULT = Fault(kind=FaultKind.UNAVAILABLE, detail="The source is gone.")
ISSUE, ISSUED = (
    cls(operation=OP, node=N1, work=WORK, policy="replicate")
    for cls in (IssueOperation, OperationIssued)
)


def started(epoch=1, attempt=1):
    return OperationStarted(operation=OP, epoch=epoch, attempt=attempt)


def start(epoch=1):
    return StartOperation(operation=OP, epoch=epoch)


def retry(attempt=None):
    return RetryOperation(operation=OP, attempt=attempt)


def retried(attempt):
    return OperationRetried(operation=OP, attempt=attempt)


SUCCEED, SUCCEEDED = (
    cls(operation=OP, epoch=1, bytes_moved=7, transports={"tcp": 7})
    for cls in (SucceedOperation, OperationSucceeded)
)
FAIL, FAILED = (
    cls(operation=OP, epoch=1, fault=FAULT, bytes_moved=3)
    for cls in (FailOperation, OperationFailed)
)
CANCEL, CANCELLED = (
    cls(operation=OP, reason="asked") for cls in (CancelOperation, OperationCancelled)
)
REROUTED = OperationRerouted(operation=OP, sources=("n3",))
RUNNING = (ISSUED, started())


def fold(*events):
    state = None
    for recorded in record_all(events):
        state = evolve(state, recorded, recorded.event)
    return state


@pytest.mark.parametrize(
    ("history", "command", "events"),
    [
        ((), ISSUE, (ISSUED,)),
        ((ISSUED,), ISSUE, ()),
        ((*RUNNING, SUCCEEDED), ISSUE, ()),
        ((ISSUED,), start(), (started(),)),
        (RUNNING, start(), ()),
        (RUNNING, start(epoch=2), (started(epoch=2),)),
        (RUNNING, SUCCEED, (SUCCEEDED,)),
        ((*RUNNING, SUCCEEDED), SUCCEED, ()),
        (RUNNING, FAIL, (FAILED,)),
        ((ISSUED,), FAIL, (FAILED,)),
        ((*RUNNING, FAILED), retry(), (retried(2),)),
        ((*RUNNING, FAILED), retry(2), (retried(2),)),
        ((*RUNNING, FAILED), retry(1), ()),
        ((*RUNNING, FAILED, retried(2)), retry(2), ()),
        ((*RUNNING, FAILED, retried(2)), start(), (started(attempt=2),)),
        ((*RUNNING, FAILED, retried(2), started(attempt=2)), retry(2), ()),
        ((ISSUED, CANCELLED), retry(), (retried(2),)),
        ((ISSUED, CANCELLED), retry(2), ()),
        ((ISSUED,), CANCEL, (CANCELLED,)),
        (RUNNING, CANCEL, (CANCELLED,)),
        ((*RUNNING, FAILED), CANCEL, (CANCELLED,)),
        ((ISSUED, CANCELLED), CANCEL, ()),
    ],
)
def test_decisions(history, command, events):
    assert decide(fold(*history), command) == events


@pytest.mark.parametrize(
    ("history", "command", "error", "why"),
    [
        *(((), c, NotFound, "no operation") for c in (start(), SUCCEED, FAIL, retry(), CANCEL)),
        ((ISSUED,), SUCCEED, Rejected, "is issued"),
        ((ISSUED,), retry(), Rejected, "is issued"),
        (RUNNING, retry(), Rejected, "is running"),
        ((*RUNNING, SUCCEEDED), start(), Rejected, "is succeeded"),
        ((*RUNNING, SUCCEEDED), FAIL, Rejected, "is succeeded"),
        ((*RUNNING, SUCCEEDED), retry(), Rejected, "is succeeded"),
        ((*RUNNING, SUCCEEDED), CANCEL, Rejected, "has succeeded already"),
        ((*RUNNING, FAILED), SUCCEED, Rejected, "is failed"),
        ((*RUNNING, FAILED), start(), Rejected, "is failed"),
        ((*RUNNING, FAILED), FAIL, Rejected, "is failed"),
        ((*RUNNING, FAILED), retry(3), Rejected, "at attempt 1, not 2"),
        ((*RUNNING, CANCELLED), SUCCEED, Rejected, "is cancelled"),
        ((*RUNNING, CANCELLED), FAIL, Rejected, "is cancelled"),
        ((*RUNNING, CANCELLED), start(), Rejected, "is cancelled"),
        *(((ISSUED, started(epoch=2)), c, Rejected, "stale") for c in (start(), SUCCEED, FAIL)),
    ],
)
def test_refusals(history, command, error, why):
    with pytest.raises(error, match=why):
        decide(fold(*history), command)


def test_what_the_events_leave():
    issued = evolve(None, record(ISSUED, 1, cause=event_id(5)), ISSUED)
    assert (issued.id, issued.node, issued.work, issued.policy) == (OP, N1, WORK, "replicate")
    assert (issued.cause, issued.attempt, issued.epoch) == (event_id(5), 1, 0)
    assert issued.issued_at == record(ISSUED, 1).at


def test_a_failure_is_remembered_until_a_success():
    failed = fold(*RUNNING, FAILED)
    assert (failed.fault, failed.bytes_moved) == (FAULT, 3)
    assert failed.ended_at == record(FAILED, 3).at
    again = fold(*RUNNING, FAILED, retried(2))
    assert (again.status, again.attempt, again.fault) == (OperationStatus.ISSUED, 2, FAULT)
    assert again.ended_at is None
    done = fold(*RUNNING, FAILED, retried(2), started(attempt=2), SUCCEEDED)
    assert (done.status, done.fault, done.transports) == ("succeeded", None, {"tcp": 7})
    assert done.ended_at == record(SUCCEEDED, 6).at


def test_a_new_life_of_the_mover_takes_it_over():
    state = fold(*RUNNING, started(epoch=2))
    assert (state.status, state.epoch, state.attempt) == (OperationStatus.RUNNING, 2, 1)


def reroute(sources, instead_of):
    return RerouteOperation(operation=OP, sources=sources, instead_of=instead_of)


def test_a_reroute_changes_the_sources_once():
    planned = OperationRerouted(operation=OP, sources=("n2", "n4"))
    state = fold(*RUNNING, planned)
    assert (state.status, state.work.sources) == (OperationStatus.RUNNING, ("n2", "n4"))
    assert decide(state, reroute(("n3",), "n2")) == (REROUTED,)
    after = fold(*RUNNING, planned, REROUTED)
    assert after.work.sources == ("n3",)
    assert decide(after, reroute(("n5",), "n2")) == (), "it does not rely on n2 any more"
    assert decide(after, reroute(("n3",), "n3")) == ()


def test_what_is_over_or_no_materialization_is_not_rerouted():
    sources = OperationRerouted(operation=OP, sources=("n2",))
    for end in (SUCCEEDED, CANCELLED):
        assert decide(fold(*RUNNING, sources, end), reroute(("n3",), "n2")) == ()
    load = OperationIssued(operation=OP, node=N1, work=Load(artifact=WORK.artifact), policy="x")
    assert decide(fold(load), reroute(("n3",), "n2")) == ()
    assert fold(load, REROUTED).work == load.work


def test_open_operations_are_those_that_a_mover_must_still_run():
    assert {OperationStatus.ISSUED, OperationStatus.RUNNING} == OPEN


STATES = {
    None: (),
    OperationStatus.ISSUED: (ISSUED,),
    OperationStatus.RUNNING: RUNNING,
    OperationStatus.SUCCEEDED: (*RUNNING, SUCCEEDED),
    OperationStatus.FAILED: (*RUNNING, FAILED),
    OperationStatus.CANCELLED: (*RUNNING, CANCELLED),
}
EVENTS = [ISSUED, started(), SUCCEEDED, FAILED, retried(2), REROUTED, CANCELLED]


@pytest.mark.parametrize("status", STATES)
@pytest.mark.parametrize("event", EVENTS)
def test_the_table_is_the_law(status, event):
    check_law(evolve, fold(*STATES[status]), event, TRANSITIONS.get((status, type(event))))


def test_the_list_above_holds_every_event():
    assert {type(event) for event in EVENTS} == set(get_args(OperationEvent))


def test_a_state_is_frozen():
    with pytest.raises(AttributeError, match="immutable"):
        fold(ISSUED).attempt = 2
    assert msgspec.structs.replace(fold(ISSUED), attempt=2).attempt == 2
