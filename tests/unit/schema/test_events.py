from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies import values
from tensorcast.schema import commands, events
from tensorcast.schema.events import EVENT_TYPES, TYPE_NAMES, AggregateKind, Event, aggregate_of


def test_every_event_has_one_type_name():
    assert set(get_args(Event)) == set(EVENT_TYPES.values()) == set(TYPE_NAMES)
    assert len(TYPE_NAMES) == len(EVENT_TYPES)


@pytest.mark.parametrize("cls", EVENT_TYPES.values())
def test_events_are_frozen_and_keyword_only(cls):
    config = cls.__struct_config__
    assert config.frozen
    with pytest.raises(TypeError, match="positional"):
        cls("x")


@given(st.sampled_from(sorted(EVENT_TYPES)).flatmap(lambda name: values(EVENT_TYPES[name])))
def test_an_event_names_its_aggregate(event):
    kind, aggregate_id = aggregate_of(event)
    assert TYPE_NAMES[type(event)].startswith(f"{kind}.")
    assert aggregate_id == getattr(event, kind)


def test_each_kind_of_aggregate_has_its_union():
    for kind in AggregateKind:
        union = getattr(events, f"{kind.title()}Event")
        prefix = {TYPE_NAMES[cls].split(".")[0] for cls in (get_args(union) or (union,))}
        assert prefix == {kind}


def test_the_type_name_is_the_class_name_in_other_words():
    for name, cls in EVENT_TYPES.items():
        words = name.replace(".", "_").split("_")
        assert cls.__name__ in {
            "".join(w.title() for w in words),
            "".join(w.title() for w in words[1:]),
        }


def test_commands_are_kept_apart_from_events():
    assert not set(get_args(commands.Command)) & set(get_args(Event))
