import pytest

from tensorcast.controlplane.core.policies.topics import Topics, TopicsParameters
from tensorcast.schema.errors import InvalidArgument
from worlds import World

STEP = {"type": "object", "properties": {"step": {"type": "integer"}}, "required": ["step"]}


@pytest.mark.parametrize(
    ("topic", "data", "is_good"),
    [
        ("train.a", {"step": 1}, True),
        ("train.a", {"step": "1"}, False),
        ("train.a", {}, False),
        ("train.a.b", {}, True),
        ("other", {}, True),
        ("weights.published", {"key": "a@1"}, True),
        ("weights.published", {}, False),
        ("engine.load.e1", {"running": "many"}, False),
    ],
)
def test_data_has_the_shape_of_its_topic(topic, data, is_good):
    admitted = Topics(TopicsParameters(shapes={"train.*": STEP}))
    if is_good:
        admitted.check(topic, data)
    else:
        with pytest.raises(InvalidArgument):
            admitted.check(topic, data)


@pytest.mark.parametrize("shapes", [{"a b": STEP}, {"a": {"typ": "x"}}])
def test_what_is_no_shape_or_no_pattern_is_refused_when_it_is_set(shapes):
    with pytest.raises(InvalidArgument):
        Topics(TopicsParameters(shapes=shapes))


def test_it_answers_no_event():
    world = World()
    world.node("n1")
    assert Topics(TopicsParameters()).react(world.view, world.last) == ()
