"""A command for each signal, and shapes from files.

The command is split into words once and run without a shell: what a signal says is in its input and
its environment, never in a line that somebody interprets.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from tensorcast.client.signals import Start
from tensorcast.schema.errors import InvalidArgument, NotFound
from tensorcast.schema.shapes import check_shape
from tensorcast.schema.signals import Signal
from tensorcast.schema.wording import tell_count

AGAIN_S: Final = 1.0
PREFIX: Final = "TENSORCAST_SIGNAL_"
TIMED_OUT: Final = 124
"""The exit status of a command that took too long, as `timeout` of coreutils has it."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What `tcctl signal tail` reads, until when, and what it runs for each signal."""

    pattern: str
    start: Start
    durable: str | None = None
    count: int | None = None
    timeout_s: float | None = None
    command: tuple[str, ...] | None = None
    dead_after: int | None = None


def split_command(text: str) -> tuple[str, ...]:
    """The words of a command, as a shell would split them. Raises InvalidArgument."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise InvalidArgument(f"{text!r} is no command: {error}.") from error
    if not words:
        raise InvalidArgument("No command is named.", hint="As in --exec './install.sh --fast'.")
    return words


def environment(signal: Signal) -> dict[str, str]:
    """What the command finds in its environment."""
    return {
        PREFIX + "TOPIC": signal.topic,
        PREFIX + "SEQ": str(signal.seq),
        PREFIX + "AT": signal.at.isoformat(),
        PREFIX + "ACTOR": signal.actor,
        PREFIX + "ID": signal.id,
        PREFIX + "DELIVERY": str(signal.delivery),
    }


def run_command(
    words: Sequence[str],
    signal: Signal,
    environ: Mapping[str, str],
    timeout_s: float | None = None,
) -> int:
    """Runs the command with the data of the signal, a line of JSON, as its input; its exit status.
    One that takes longer than `timeout_s` is killed, and its status is TIMED_OUT. Raises NotFound
    when it cannot be started."""
    try:
        done = subprocess.run(
            list(words),
            input=msgspec.json.encode(signal.data) + b"\n",
            env={**environ, **environment(signal)},
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return TIMED_OUT
    except OSError as error:
        raise NotFound(f"{words[0]} cannot be run: {error.strerror}.") from error
    return done.returncode


def describe_failure(reading: Reading, signal: Signal, code: int) -> str:
    """What is told of a command that failed for a signal, and what becomes of that."""
    command = shlex.join(reading.command or ())
    how = f"ended with {code}"
    if code == TIMED_OUT and reading.timeout_s is not None:
        how = f"did not end within {reading.timeout_s:g} s and was killed"
    after = "it comes again" if reading.durable else "it does not come again without --durable"
    if reading.dead_after is not None and signal.delivery >= reading.dead_after:
        times = tell_count(signal.delivery, "try", "tries")
        after = f"it is given up after {times}, and said on dead.{reading.durable}"
    return f"{command} {how} for signal {signal.seq} on {signal.topic}; {after}."


def read_shape(path: Path) -> dict[str, object]:
    """A shape from a file. Raises NotFound, InvalidArgument."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=dict[str, object])
    except OSError as error:
        raise NotFound(f"{path} cannot be read: {error.strerror}.") from error
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidArgument(f"{path} is no JSON object: {error}.") from error
    check_shape(found)
    return found
