"""The facts about engines are part of the language."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies import values
from tensorcast.schema.codec import decode_event, encode_data
from tensorcast.schema.engine_events import ENGINE_EVENT_TYPES, EngineEvent
from tensorcast.schema.events import EVENT_TYPES, AggregateKind, aggregate_of


def test_each_has_a_type_that_is_known():
    assert set(ENGINE_EVENT_TYPES.values()) == set(get_args(EngineEvent))
    assert ENGINE_EVENT_TYPES.items() <= EVENT_TYPES.items()


@given(st.sampled_from(sorted(ENGINE_EVENT_TYPES)).flatmap(lambda n: values(EVENT_TYPES[n])))
def test_each_is_about_its_engine(event):
    assert aggregate_of(event) == (AggregateKind.ENGINE, event.engine)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (
            "engine.serving",
            b'{"engine":"e","life":"l","version":"v","artifact":null,'
            b'"since":"2030-01-01T00:00:00"}',
        ),
        ("engine.lost", b'{"engine":"e","life":"l","last_seen":"2030-01-01T00:00:00"}'),
        ("engine.left", b'{"engine":"e"}'),
    ],
)
def test_a_time_has_a_zone_and_a_life_is_named(kind, data):
    with pytest.raises(msgspec.ValidationError):
        decode_event(kind, 1, data)


def test_times_keep_their_microseconds():
    data = (
        b'{"engine":"e","life":"l","version":"v","artifact":null,'
        b'"since":"2030-01-01T00:00:00.123456Z"}'
    )
    assert encode_data(decode_event("engine.serving", 1, data)) == data
