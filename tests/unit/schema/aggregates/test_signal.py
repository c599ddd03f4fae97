import pytest

from samples import BEGIN, record_all
from tensorcast.schema.aggregates.signal import SignalStatus, decide, evolve
from tensorcast.schema.commands import EmitSignal
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.events import SignalEmitted

SAID = SignalEmitted(topic="weights.published", data={"key": "a@1"})


def fold(*events):
    state = None
    for recorded in record_all(events):
        state = evolve(state, recorded, recorded.event)
    return state


@pytest.mark.parametrize("history", [(), (SAID,), (SAID, SAID)])
def test_a_signal_is_emitted_whatever_was_said_before(history):
    command = EmitSignal(topic="weights.published", data={"key": "a@1"})
    assert decide(fold(*history), command) == (SAID,)


@pytest.mark.parametrize(
    "command", [EmitSignal(topic="a b"), EmitSignal(topic="a", data={"a": "x" * 70_000})]
)
def test_what_no_signal_can_be_is_refused(command):
    with pytest.raises(InvalidArgument):
        decide(None, command)


def test_a_topic_counts_its_signals_and_knows_the_last():
    first, last = fold(SAID), fold(SAID, SAID, SAID)
    assert (first.emitted, first.version, first.status) == (1, 1, SignalStatus.OPEN)
    assert (last.emitted, last.version, last.id) == (3, 3, "weights.published")
    assert first.first_at == last.first_at
    assert last.last_at > first.last_at >= BEGIN
