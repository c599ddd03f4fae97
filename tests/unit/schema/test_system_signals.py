import pytest

from tensorcast.schema.shapes import check_shape, find_fault
from tensorcast.schema.signals import Pattern, parse_pattern
from tensorcast.schema.system_signals import SHAPES


@pytest.mark.parametrize("pattern", SHAPES)
def test_every_topic_has_a_shape_that_is_one(pattern):
    assert parse_pattern(pattern) == pattern
    check_shape(SHAPES[pattern])
    assert find_fault(SHAPES[pattern], {}) is not None


def test_the_load_of_an_engine_as_its_watcher_tells_it():
    load = {"running": 1, "waiting": 0, "cache_usage": 0.5, "finished": 3, "ttft_s": 0.1}
    assert find_fault(SHAPES[Pattern("engine.load.*")], load) is None
