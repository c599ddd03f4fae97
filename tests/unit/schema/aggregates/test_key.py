from typing import get_args

import pytest

from laws import check_law
from samples import artifact_id, record, record_all
from tensorcast.schema.aggregates.key import TRANSITIONS, KeyStatus, decide, evolve
from tensorcast.schema.commands import MoveKey, RemoveKey
from tensorcast.schema.errors import Conflict, InvalidArgument, NotFound
from tensorcast.schema.events import KeyEvent, KeyMoved, KeyRemoved

A, B = artifact_id("a"), artifact_id("b")
K = "llama-8b@1"


def moved(artifact, previous, version):
    return KeyMoved(key=K, artifact=artifact, previous=previous, version=version)


def removed(previous, version):
    return KeyRemoved(key=K, previous=previous, version=version)


def move(artifact, expect=None):
    return MoveKey(key=K, artifact=artifact, expect=expect)


def remove(expect=None):
    return RemoveKey(key=K, expect=expect)


TO_A, GONE = moved(A, None, 1), removed(A, 2)


def fold(*events):
    state = None
    for recorded in record_all(events):
        state = evolve(state, recorded, recorded.event)
    return state


@pytest.mark.parametrize(
    ("history", "command", "events"),
    [
        ((), move(A), (TO_A,)),
        ((TO_A,), move(A), ()),
        ((TO_A,), move(A, expect=B), ()),
        ((TO_A,), move(B, expect=A), (moved(B, A, 2),)),
        ((TO_A,), remove(), (GONE,)),
        ((TO_A,), remove(expect=A), (GONE,)),
        ((TO_A, GONE), move(B), (moved(B, None, 3),)),
        ((TO_A, GONE), move(A), (moved(A, None, 3),)),
    ],
)
def test_decisions(history, command, events):
    assert decide(fold(*history), command) == events


@pytest.mark.parametrize(
    ("history", "command", "error", "why"),
    [
        ((TO_A,), move(B), Conflict, f"a new key was asked for.*--expect {A}"),
        ((TO_A,), move(B, expect=B), Conflict, f"points to {A}, not"),
        ((TO_A, moved(B, A, 2)), move(artifact_id("c"), expect=A), Conflict, f"points to {B}, not"),
        ((), move(A, expect=B), Conflict, "does not exist"),
        ((TO_A, GONE), move(B, expect=A), Conflict, "does not exist"),
        ((TO_A,), remove(expect=B), Conflict, f"points to {A}, not"),
        ((), remove(), NotFound, "no key"),
        ((TO_A, GONE), remove(expect=A), NotFound, "no key"),
        ((), MoveKey(key=" ", artifact=A), InvalidArgument, "not a key"),
        ((), MoveKey(key="", artifact=A), InvalidArgument, "not a key"),
    ],
)
def test_refusals(history, command, error, why):
    with pytest.raises(error, match=why):
        decide(fold(*history), command)


def test_what_the_events_leave():
    state = fold(TO_A, moved(B, A, 2), removed(B, 3))
    assert (state.key, state.artifact, state.moves, state.version) == (K, B, 3, 3)
    assert state.moved_at == record(GONE, 3).at


STATES = {None: (), KeyStatus.SET: (TO_A,), KeyStatus.REMOVED: (TO_A, GONE)}
EVENTS = [moved(B, A, 5), removed(A, 5)]


@pytest.mark.parametrize("status", STATES)
@pytest.mark.parametrize("event", EVENTS)
def test_the_table_is_the_law(status, event):
    check_law(evolve, fold(*STATES[status]), event, TRANSITIONS.get((status, type(event))))


def test_the_list_above_holds_every_event():
    assert {type(event) for event in EVENTS} == set(get_args(KeyEvent))
