from datetime import timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samples import BEGIN, artifact_id, event_id
from tensorcast.controlplane.core.served import served_spans, span_at
from tensorcast.schema.api import EventInfo
from tensorcast.schema.codec import encode_data
from tensorcast.schema.engine_events import (
    EngineLeft,
    EngineLost,
    EngineRegistered,
    EngineServing,
)
from tensorcast.schema.events import TYPE_NAMES
from tensorcast.schema.ids import EngineId, Seq

E = EngineId("e")


def at(second):
    return BEGIN + timedelta(seconds=second)


def registered(life="one"):
    return EngineRegistered(
        engine=E, life=life, kind="vllm", node=None, model="m", url="", ttl_s=15.0
    )


def serving(version, since, life="one"):
    return EngineServing(
        engine=E, life=life, version=version, artifact=artifact_id(version), since=at(since)
    )


def lost(since, life="one"):
    return EngineLost(engine=E, life=life, last_seen=at(since))


def spans(*told):
    """(second of recording, event) pairs as spans, short."""
    infos = [
        EventInfo(
            seq=Seq(n),
            id=event_id(n),
            type=TYPE_NAMES[type(event)],
            v=1,
            at=at(second),
            actor="engine:e",
            cause=None,
            data=msgspec.Raw(encode_data(event)),
        )
        for n, (second, event) in enumerate(told, 1)
    ]
    return served_spans(infos)


def short(found):
    def second(moment):
        return None if moment is None else (moment - BEGIN).total_seconds()

    return [(one.version, second(one.since), second(one.until)) for one in found]


@pytest.mark.parametrize(
    ("told", "served"),
    [
        ([(1, registered())], []),
        ([(1, registered()), (3, serving("a", 2))], [("a", 2, None)]),
        (
            [(1, registered()), (3, serving("a", 2)), (9, serving("b", 8))],
            [("a", 2, 8), ("b", 8, None)],
        ),
        ([(3, serving("a", 2)), (9, EngineLeft(engine=E, life="one"))], [("a", 2, 9)]),
        ([(3, serving("a", 2)), (20, lost(9))], [("a", 2, 9)]),
        ([(3, serving("a", 2)), (9, registered("two"))], [("a", 2, 9)]),
        ([(3, serving("a", 2)), (9, registered())], [("a", 2, None)]),
        (
            [(3, serving("a", 2)), (20, lost(9)), (21, registered()), (22, serving("a", 2))],
            [("a", 2, None)],
        ),
        (
            [(3, serving("a", 2)), (20, lost(9)), (30, registered()), (31, serving("b", 25))],
            [("a", 2, 9), ("b", 25, None)],
        ),
        (
            [(3, serving("a", 2)), (9, registered("two")), (12, serving("a", 10, "two"))],
            [("a", 2, 9), ("a", 10, None)],
        ),
    ],
)
def test_what_was_served_from_when_to_when(told, served):
    assert short(spans(*told)) == served


def test_which_weights_made_a_sample():
    found = spans((3, serving("a", 2)), (9, serving("b", 8)), (20, lost(15)))
    made = {second: span_at(found, at(second)) for second in (1, 2, 7.9, 8, 14, 15, 30)}
    assert {s: one and one.version for s, one in made.items()} == {
        1: None,
        2: "a",
        7.9: "a",
        8: "b",
        14: "b",
        15: None,
        30: None,
    }


def test_events_of_a_newer_release_are_passed_over():
    (info,) = [
        EventInfo(
            seq=Seq(1),
            id=event_id(1),
            type="engine.slept",
            v=1,
            at=BEGIN,
            actor="x",
            cause=None,
            data=msgspec.Raw(b"{}"),
        )
    ]
    assert served_spans([info]) == ()


@given(st.lists(st.integers(1, 50), min_size=1, max_size=20))
def test_each_moment_of_an_engine_that_is_up_belongs_to_one_version(steps):
    told, now = [(0, registered())], 0
    for n, step in enumerate(steps):
        now += step
        told.append((now, serving(f"v{n}", now)))
    found = spans(*told)
    for n, one in enumerate(found):
        assert span_at(found, one.since).version == f"v{n}"
        assert (
            sum(s.since <= one.since and not (s.until and s.until <= one.since) for s in found) == 1
        )
    assert found[-1].until is None
