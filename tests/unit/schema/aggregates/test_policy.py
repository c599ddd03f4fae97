import pytest

from samples import record_all
from tensorcast.schema.aggregates.policy import PolicyStatus, decide, evolve
from tensorcast.schema.commands import ConfigurePolicy, DisablePolicy, EnablePolicy, StopPolicy
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.policy_events import (
    PolicyConfigured,
    PolicyDisabled,
    PolicyEnabled,
    PolicyStopped,
)

NAME = "keep-last"
ON = PolicyEnabled(policy=NAME)
OFF = PolicyDisabled(policy=NAME)
SET = PolicyConfigured(policy=NAME, parameters={"versions": 3})
STOPPED = PolicyStopped(policy=NAME, reason="flood", detail="too much")


def fold(*events):
    state = None
    for recorded in record_all(events):
        state = evolve(state, recorded, recorded.event)
    return state


ENABLE, DISABLE = EnablePolicy(policy=NAME), DisablePolicy(policy=NAME)
CONFIGURE = ConfigurePolicy(policy=NAME, parameters={"versions": 3})
STOP = StopPolicy(policy=NAME, reason="flood", detail="too much")


@pytest.mark.parametrize(
    ("history", "command", "events"),
    [
        ((), ENABLE, (ON,)),
        ((ON,), ENABLE, ()),
        ((OFF,), ENABLE, (ON,)),
        ((STOPPED,), ENABLE, (ON,)),
        ((), EnablePolicy(policy=NAME, parameters={"versions": 3}), (SET, ON)),
        ((SET, ON), EnablePolicy(policy=NAME, parameters={"versions": 3}), ()),
        ((), CONFIGURE, (SET,)),
        ((SET,), CONFIGURE, ()),
        ((), DISABLE, (OFF,)),
        ((OFF,), DISABLE, ()),
        ((), STOP, (STOPPED,)),
        ((ON,), STOP, (STOPPED,)),
        ((STOPPED,), STOP, ()),
        ((OFF,), STOP, ()),
    ],
)
def test_what_follows_from_a_command(history, command, events):
    assert decide(fold(*history), command) == events


@pytest.mark.parametrize(
    ("history", "status", "parameters"),
    [
        ((SET,), PolicyStatus.UNSET, {"versions": 3}),
        ((SET, ON), PolicyStatus.ENABLED, {"versions": 3}),
        ((ON, STOPPED), PolicyStatus.STOPPED, {}),
        ((SET, STOPPED, OFF), PolicyStatus.DISABLED, {"versions": 3}),
    ],
)
def test_what_the_events_fold_to(history, status, parameters):
    state = fold(*history)
    assert (state.status, state.parameters) == (status, parameters)


def test_why_it_was_stopped_is_known_until_it_runs_again():
    assert (fold(ON, STOPPED).reason, fold(ON, STOPPED, SET).detail) == ("flood", "too much")
    assert fold(STOPPED, ON).reason == ""


@pytest.mark.parametrize(
    "command",
    [
        EnablePolicy(policy="No Name"),
        ConfigurePolicy(policy=NAME, parameters={"a": "x" * 70_000}),
        ConfigurePolicy(policy=NAME, parameters={"a": object()}),
    ],
)
def test_what_no_policy_can_be_is_refused(command):
    with pytest.raises(InvalidArgument):
        decide(None, command)
