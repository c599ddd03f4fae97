import pytest

from tensorcast.schema.events import EVENT_TYPES
from tensorcast.schema.upcast import CURRENT, STEPS, VERSION_FIRST, current_version, upcast


def test_steps_run_one_after_another():
    steps = {
        ("key.moved", 1): lambda data: {**data, "two": 2},
        ("key.moved", 2): lambda data: {**data, "three": data["two"]},
    }
    assert upcast("key.moved", 1, {"one": 1}, target=3, steps=steps) == {
        "one": 1,
        "two": 2,
        "three": 2,
    }
    assert upcast("key.moved", 2, {"two": 0}, target=3, steps=steps) == {"two": 0, "three": 0}


def test_the_current_version_needs_no_step():
    data = {"one": 1}
    assert upcast("key.moved", current_version("key.moved"), data) is data


def test_a_missing_step_is_an_error():
    with pytest.raises(KeyError):
        upcast("key.moved", 1, {}, target=2)


def test_every_released_version_has_a_step_to_the_current_one():
    assert set(CURRENT) <= set(EVENT_TYPES)
    for event_type in EVENT_TYPES:
        for version in range(VERSION_FIRST, current_version(event_type)):
            assert (event_type, version) in STEPS
