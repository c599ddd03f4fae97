from datetime import datetime, timedelta
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laws import check_law
from samples import BEGIN, N1, artifact_id, record, record_all
from tensorcast.schema.aggregates.engine import (
    TRANSITIONS,
    TTL_S_MAX,
    TTL_S_MIN,
    EngineStatus,
    decide,
    evolve,
)
from tensorcast.schema.commands import LeaveEngine, LoseEngine, RegisterEngine, ServeWeights
from tensorcast.schema.engine_events import (
    EngineEvent,
    EngineLeft,
    EngineLost,
    EngineRegistered,
    EngineServing,
)
from tensorcast.schema.errors import InvalidArgument, NotFound, Rejected, TensorCastError

A, B = artifact_id("a"), artifact_id("b")
LATER = BEGIN + timedelta(hours=1)
FIELDS = {
    "engine": "vllm-0",
    "kind": "vllm",
    "node": N1,
    "model": "llama",
    "url": "http://h:1",
    "ttl_s": 15.0,
    "labels": {"pool": "a"},
}
REGISTER, REGISTERED = (c(life="one", **FIELDS) for c in (RegisterEngine, EngineRegistered))
AGAIN, REBORN = (c(life="two", **FIELDS) for c in (RegisterEngine, EngineRegistered))
WEIGHTS = {"engine": "vllm-0", "life": "one", "version": "m@1", "artifact": A, "since": BEGIN}
SERVE, SERVING = ServeWeights(**WEIGHTS), EngineServing(**WEIGHTS)
NEXT = {"version": "m@2", "artifact": B, "since": LATER}
SERVE_NEXT, SERVING_NEXT = (msgspec.structs.replace(one, **NEXT) for one in (SERVE, SERVING))
LEAVE, LEFT = (c(engine="vllm-0", life="one") for c in (LeaveEngine, EngineLeft))
LOSE, LOST = (c(engine="vllm-0", life="one", last_seen=LATER) for c in (LoseEngine, EngineLost))


def fold(*events):
    state = None
    for recorded in record_all(events):
        state = evolve(state, recorded, recorded.event)
    return state


@pytest.mark.parametrize(
    ("history", "command", "events"),
    [
        ((), REGISTER, (REGISTERED,)),
        ((REGISTERED,), REGISTER, ()),
        ((REGISTERED,), AGAIN, (REBORN,)),
        ((REGISTERED, LEFT), REGISTER, (REGISTERED,)),
        ((REGISTERED, LOST), REGISTER, (REGISTERED,)),
        ((REGISTERED,), SERVE, (SERVING,)),
        ((REGISTERED, SERVING), SERVE, ()),
        ((REGISTERED, SERVING), SERVE_NEXT, (SERVING_NEXT,)),
        ((REGISTERED, SERVING, SERVING_NEXT), SERVE, (SERVING,)),
        ((REGISTERED,), LEAVE, (LEFT,)),
        ((REGISTERED, LOST), LEAVE, (LEFT,)),
        ((REGISTERED, LEFT), LEAVE, ()),
        ((REGISTERED, REBORN), LEAVE, ()),
        ((REGISTERED,), LOSE, (LOST,)),
        ((REGISTERED, LOST), LOSE, ()),
        ((REGISTERED, LEFT), LOSE, ()),
        ((REGISTERED, REBORN), LOSE, ()),
    ],
)
def test_decisions(history, command, events):
    assert decide(fold(*history), command) == events


@pytest.mark.parametrize(
    ("history", "command", "error", "why"),
    [
        ((), SERVE, NotFound, "no engine"),
        ((), LEAVE, NotFound, "no engine"),
        ((), LOSE, NotFound, "no engine"),
        ((REGISTERED, REBORN), SERVE, Rejected, "another life"),
        ((REGISTERED, LEFT), SERVE, Rejected, "cannot follow"),
        ((REGISTERED, LOST), SERVE, Rejected, "cannot follow"),
    ],
)
def test_refusals(history, command, error, why):
    with pytest.raises(error, match=why):
        decide(fold(*history), command)


@pytest.mark.parametrize(
    "change",
    [
        {"engine": ""},
        {"engine": "a b"},
        {"engine": "x" * 129},
        {"life": ""},
        {"life": "x" * 2000},
        {"kind": "a\nb"},
        {"model": "x" * 2000},
        {"url": "\0"},
        {"ttl_s": TTL_S_MIN / 2},
        {"ttl_s": TTL_S_MAX * 2},
        {"ttl_s": float("nan")},
        {"labels": {"": "x"}},
        {"labels": {str(n): "x" for n in range(100)}},
    ],
)
def test_descriptions_that_cannot_be(change):
    with pytest.raises(InvalidArgument):
        decide(None, msgspec.structs.replace(REGISTER, **change))


@pytest.mark.parametrize(
    "change",
    [
        {"version": ""},
        {"version": "a\tb"},
        {"artifact": "llama"},
        {"since": datetime(2030, 1, 1)},
    ],
)
def test_weights_that_cannot_be(change):
    with pytest.raises(InvalidArgument):
        decide(fold(REGISTERED), msgspec.structs.replace(SERVE, **change))


def test_a_life_that_registers_again_keeps_what_it_leaves_empty_and_its_weights():
    short = RegisterEngine(engine="vllm-0", life="one", url="http://h:2", ttl_s=15.0)
    (event,) = decide(fold(REGISTERED, SERVING), short)
    assert event == msgspec.structs.replace(REGISTERED, url="http://h:2")
    state = fold(REGISTERED, SERVING, event)
    assert (state.weights, state.artifact, state.since) == ("m@1", A, BEGIN)


@pytest.mark.parametrize("between", [(REBORN,), (LOST, REGISTERED), (LEFT, REGISTERED)])
def test_a_new_or_resumed_life_has_to_tell_its_weights(between):
    state = fold(REGISTERED, SERVING, *between)
    assert (state.weights, state.artifact, state.since) == ("", None, None)


@pytest.mark.parametrize("end", [LEFT, LOST])
def test_who_has_stopped_is_remembered_with_its_last_weights(end):
    state = fold(REGISTERED, SERVING, end)
    assert (state.weights, state.artifact, state.since, state.version) == ("m@1", A, BEGIN, 3)
    assert state.registered_at == record(REGISTERED, 1).at


STATES = {
    None: (),
    EngineStatus.UP: (REGISTERED,),
    EngineStatus.LEFT: (REGISTERED, LEFT),
    EngineStatus.LOST: (REGISTERED, LOST),
}
EVENTS = [REGISTERED, SERVING, LEFT, LOST]


@pytest.mark.parametrize("status", STATES)
@pytest.mark.parametrize("event", EVENTS)
def test_the_table_is_the_law(status, event):
    check_law(evolve, fold(*STATES[status]), event, TRANSITIONS.get((status, type(event))))


def test_the_list_above_holds_every_event():
    assert {type(event) for event in EVENTS} == set(get_args(EngineEvent))


COMMANDS = st.sampled_from([REGISTER, AGAIN, SERVE, SERVE_NEXT, LEAVE, LOSE])


@given(st.lists(COMMANDS, max_size=30))
def test_whatever_is_asked_an_engine_that_is_up_serves_what_its_life_said_last(commands):
    state, said, seq = None, "", 0
    for command in commands:
        try:
            events = decide(state, command)
        except TensorCastError:
            continue
        for event in events:
            seq += 1
            state = evolve(state, record(event, seq), event)
            if isinstance(event, EngineServing):
                said = event.version
            elif isinstance(event, EngineRegistered):
                said = ""  # no description changes here, so this is a life that begins or resumes
        assert decide(state, command) == (), "a repeated command changes nothing"
    assert (state.weights if state else "") == said
