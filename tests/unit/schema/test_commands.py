from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies import values
from tensorcast.schema import commands, events
from tensorcast.schema.commands import Command, aggregate_of
from tensorcast.schema.events import AggregateKind

COMMANDS = get_args(Command)


@pytest.mark.parametrize("kind", AggregateKind)
def test_each_kind_of_aggregate_has_its_union(kind):
    for cls in get_args(getattr(commands, f"{kind.title()}Command")):
        assert kind in cls.__struct_fields__


@given(st.sampled_from(COMMANDS).flatmap(values))
def test_a_command_survives_the_wire_and_names_its_aggregate(command):
    again = msgspec.json.decode(msgspec.json.encode(command), type=Command)
    assert again == command
    kind, aggregate_id = aggregate_of(command)
    union = getattr(commands, f"{kind.title()}Command")
    assert type(command) in (get_args(union) or (union,))
    assert aggregate_id == getattr(command, kind)


@pytest.mark.parametrize(
    "wire",
    [
        b'{"command":"FillReplica","replica":"r","epoch":1,"chunks":{"ranges":[[4,2]]}}',
        b'{"command":"FillReplica","replica":"r","epoch":1,"chunks":{"ranges":[[0,99999]]}}',
        b'{"command":"SucceedOperation","operation":"o","epoch":1,"bytes_moved":-1}',
        b'{"command":"ReleaseLease"}',
        b'{"command":"Format","disk":"c"}',
    ],
)
def test_what_no_event_could_hold_is_no_command(wire):
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(wire, type=Command)


def test_a_value_that_is_no_command():
    with pytest.raises(AssertionError, match="str is missing"):
        aggregate_of("pin")


def bounds(cls):
    """The least and the greatest value of each whole number of a message."""
    found = {}
    for field in msgspec.inspect.type_info(cls).fields:
        for kind in getattr(field.type, "types", (field.type,)):
            if isinstance(kind, msgspec.inspect.IntType):
                found[field.name] = (kind.ge, kind.le)
    return found


@pytest.mark.parametrize("kind", AggregateKind)
def test_numbers_of_a_command_fit_its_event(kind):
    """What a command lets in, an event takes along: the same limits must hold."""
    of_events = {}
    for cls in get_args(getattr(events, f"{kind.title()}Event")):
        of_events |= bounds(cls)
    for cls in get_args(getattr(commands, f"{kind.title()}Command")):
        for name, limits in bounds(cls).items():
            assert limits == of_events[name], f"{cls.__name__}.{name}"
