import sys

import msgspec
import pytest

from samples import BEGIN
from tensorcast.cli.signal_commands import (
    TIMED_OUT,
    Reading,
    describe_failure,
    environment,
    read_shape,
    run_command,
    split_command,
)
from tensorcast.schema.errors import InvalidArgument, NotFound
from tensorcast.schema.ids import EventId, Seq
from tensorcast.schema.signals import Signal, Topic

NASTY = Signal(
    seq=Seq(7),
    topic=Topic("weights.published"),
    at=BEGIN,
    actor="user:ada@desk",
    data={"key": "a; rm -rf $(pwd) `x` 'y'"},
    id=EventId("x"),
)
ECHO = "import os, sys; open(sys.argv[1], 'w').write(os.environ['{}'] + sys.stdin.read())"


def test_the_signal_is_in_its_input_and_environment_and_no_shell_sees_it(tmp_path):
    code = ECHO.format("TENSORCAST_SIGNAL_TOPIC")
    words = [sys.executable, "-c", code, str(tmp_path / "said")]
    assert run_command(words, NASTY, {}) == 0
    said = (tmp_path / "said").read_text()
    assert said == 'weights.published{"key":"a; rm -rf $(pwd) `x` \'y\'"}\n'
    assert environment(NASTY)["TENSORCAST_SIGNAL_SEQ"] == "7"


def test_a_command_that_takes_too_long_is_killed(tmp_path):
    words = [sys.executable, "-c", "import time; time.sleep(600)"]
    assert run_command(words, NASTY, {}, 0.2) == TIMED_OUT
    reading = Reading(pattern=">", start="new", timeout_s=0.2, command=("./deploy", "a b"))
    told = describe_failure(reading, NASTY, TIMED_OUT)
    assert told.startswith("./deploy 'a b' did not end within 0.2 s and was killed for signal 7")
    assert "ended with 3" in describe_failure(reading, NASTY, 3)


def test_its_exit_status_is_told():
    assert run_command([sys.executable, "-c", "raise SystemExit(3)"], NASTY, {}) == 3
    with pytest.raises(NotFound):
        run_command(["/no/such/program"], NASTY, {})


@pytest.mark.parametrize(
    ("text", "words"), [("a b", ("a", "b")), ("a 'b c' $X", ("a", "b c", "$X"))]
)
def test_a_command_is_split_into_words(text, words):
    assert split_command(text) == words


@pytest.mark.parametrize("text", ["", "  ", "a 'b"])
def test_what_is_no_command(text):
    with pytest.raises(InvalidArgument):
        split_command(text)


def test_a_shape_from_a_file(tmp_path):
    path = tmp_path / "shape.json"
    path.write_text('{"type": "object"}')
    assert read_shape(path) == {"type": "object"}
    path.write_text('{"typ": "object"}')
    with pytest.raises(InvalidArgument):
        read_shape(path)
    with pytest.raises(NotFound):
        read_shape(tmp_path / "none.json")


def test_what_becomes_of_a_signal_whose_command_failed():
    reading = Reading(pattern="a", start="new", durable="d", command=("false",), dead_after=2)
    first = msgspec.structs.replace(NASTY, delivery=1)
    assert describe_failure(reading, first, 1).endswith("; it comes again.")
    told = describe_failure(reading, msgspec.structs.replace(NASTY, delivery=2), 1)
    assert told.endswith("; it is given up after 2 tries, and said on dead.d.")
