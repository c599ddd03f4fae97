from __future__ import annotations

import msgspec
import pytest

from cli_samples import FakeClient, Tcctl
from samples import BEGIN
from tensorcast.client.signals import Reader
from tensorcast.schema.api_signals import Emitted, TopicInfo
from tensorcast.schema.errors import Conflict, InvalidArgument, NotFound
from tensorcast.schema.ids import EventId, Seq
from tensorcast.schema.signals import Signal, Topic

TOPIC = TopicInfo(
    topic=Topic("weights.published"),
    emitted=3,
    seq=Seq(9),
    at=BEGIN,
    actor="user:ada@desk",
    first_at=BEGIN,
    data={"key": "a@1"},
)
SIGNAL = Signal(
    seq=Seq(9),
    topic=Topic("weights.published"),
    at=BEGIN,
    actor="user:ada@desk",
    data={"key": "a@1"},
    id=EventId("e-9"),
)
READER = Reader("rollout-0", "weights.*", 8, 1, 0, 2, "2030-01-01T00:00:00Z")


class Heard:
    """A signal that notes when it is acknowledged."""

    def __init__(self, signal: Signal, done: list[int]) -> None:
        self.signal = signal
        self._done = done

    def ack(self) -> None:
        self._done.append(self.signal.seq)


class Reading:
    """Signals that are there, and then none."""

    def __init__(self, *signals: Signal) -> None:
        self.done: list[int] = []
        self.timeouts: list[float | None] = []
        self._left = list(signals)

    def next(self, timeout: float | None) -> Heard | None:
        self.timeouts.append(timeout)
        return Heard(self._left.pop(0), self.done) if self._left else None

    def __enter__(self) -> Reading:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_topics_are_listed(tcctl: Tcctl) -> None:
    tcctl.answer(topics=(TOPIC,))
    line = tcctl("signal", "ls").out.splitlines()[1]
    assert line.split()[:4] == ["weights.published", "3", "9", "user:ada@desk"]
    (data,) = tcctl("signal", "ls", "weights.*", "-o", "json").data
    assert {"topic", "emitted", "seq", "at", "actor", "first_at", "data"} <= data.keys()
    assert data["data"] == {"key": "a@1"}
    assert tcctl("signal", "ls", "-q").out == "weights.published\n"


def test_a_signal_is_emitted(tcctl: Tcctl) -> None:
    tcctl.client = FakeClient(emit=Emitted(id=EventId("e-1"), seq=Seq(4)))
    result = tcctl("signal", "emit", "a.b", "--data", '{"n": 1}', "-o", "json")
    assert result.data == {"topic": "a.b", "seq": 4, "id": "e-1"}
    assert tcctl("signal", "emit", "a.b").code == 0


@pytest.mark.parametrize("data", ["", "[1]", "{", "1", '"a"'])
def test_data_that_is_no_object_is_wrong_usage(tcctl: Tcctl, data: str) -> None:
    result = tcctl("signal", "emit", "a.b", "--data", data)
    assert result.code == 2
    assert "not a JSON object" in result.err


def test_signals_are_printed_and_acknowledged(tcctl: Tcctl) -> None:
    later = msgspec.structs.replace(SIGNAL, seq=Seq(10))
    reading = Reading(SIGNAL, later)
    tcctl.client = FakeClient(signals=reading)
    result = tcctl("signal", "tail", "weights.*", "--durable", "d", "--timeout", "2s", "-o", "json")
    assert [one["seq"] for one in result.data] == [9, 10]
    assert {"seq", "topic", "at", "actor", "data"} <= result.data[0].keys()
    assert reading.done == [9, 10]
    assert reading.timeouts == [2.0] * 3


def test_tail_ends_after_so_many(tcctl: Tcctl) -> None:
    reading = Reading(SIGNAL, SIGNAL)
    tcctl.client = FakeClient(signals=reading)
    result = tcctl("signal", "tail", "--count", "1", "--from", "first")
    assert result.out.splitlines()[1].split()[0] == "9"
    assert reading.done == [9]
    assert reading.timeouts == [None]


def test_errors_have_their_exit_codes(tcctl: Tcctl) -> None:
    tcctl.client = FakeClient(signals=Conflict("It reads other topics."))
    assert tcctl("signal", "tail", "a", "--durable", "d").code == 4
    tcctl.client = FakeClient(signals=InvalidArgument("'a b' is not a pattern."))
    assert tcctl("signal", "tail", "a b").code == 2
    assert tcctl("signal", "tail", "a", "--from", "whenever").code == 2
    tcctl.client = FakeClient(forget_reader=NotFound("There is no reader 'd'."))
    assert tcctl("signal", "forget", "d").code == 3


def test_readers_are_listed_and_forgotten(tcctl: Tcctl) -> None:
    tcctl.client = FakeClient(signal_readers=(READER,), forget_reader=None)
    assert tcctl("signal", "readers").out.splitlines()[1].split() == [
        *("rollout-0", "weights.*", "8", "1", "0", "2")
    ]
    (data,) = tcctl("signal", "readers", "-o", "json").data
    assert (data["name"], data["waiting"]) == ("rollout-0", 1)
    assert "forgotten" in tcctl("signal", "forget", "rollout-0").out
