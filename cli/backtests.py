"""Backtests: a copy of the log is put to another policy, by a process that simulates a cluster."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from tensorcast.cli.output import Block, Heading, Note, Table
from tensorcast.cli.session import Session
from tensorcast.cli.units import format_size, format_time, parse_position
from tensorcast.schema.errors import ErrorBody, TensorCastError, from_body
from tensorcast.schema.wording import tell_count

PROGRAM: Final = "tensorcast.controlplane.simulator.main"


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """`first` and `last` are positions, or times (RFC 3339)."""

    policy: str
    parameters: dict[str, object]
    first: str | None
    last: str | None


class Reviewed(msgspec.Struct, frozen=True, kw_only=True):
    """How the decisions in the log agree with those that are taken anew."""

    events: int
    decided: int
    carried_out: int
    overtaken: int
    strange: tuple[int, ...]
    missing: tuple[int, ...]
    plan_events: int = 0
    plan_strange: tuple[int, ...] = ()


class Faulty(msgspec.Struct, frozen=True, kw_only=True):
    """What was wrong with the answer of a policy: the first of so many times."""

    policy: str
    detail: str
    seq: int
    type: str
    at: datetime
    times: int


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What happened, or would have."""

    events: int
    operations: int
    failures: int
    bytes_moved: int
    needs: int
    hits: int
    evictions: int
    evicted_bytes: int
    plans: int = 0
    plans_failed: int = 0
    ready_s: tuple[float, ...]
    faults: tuple[Faulty, ...] = ()


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of the process."""

    review: Reviewed
    recorded: Measured
    as_it_was: Measured
    instead: Measured


class _Failed(msgspec.Struct):
    error: ErrorBody


def place_of(text: str | None, now: datetime) -> str | None:
    """A position or a time as the process takes it. Raises InvalidArgument."""
    if text is None:
        return None
    place = parse_position(text, now)
    return place.isoformat() if isinstance(place, datetime) else str(place)


def run(
    session: Session, request: Request, log: Path | None, decision_s_max: float | None = None
) -> Compared:
    """Has the process compare; the cluster's log is copied first unless one is given. Raises what
    it tells."""
    with tempfile.TemporaryDirectory(prefix="tcctl-backtest-") as folder:
        if log is None:
            log = Path(folder) / "log.ndjson"
            with session.client() as client:
                client.export_log(log)
        given = [("--from", request.first), ("--to", request.last)]
        options = [word for name, value in given if value for word in (name, value)]
        if decision_s_max is not None:
            options += ["--decision-timeout", str(decision_s_max)]
        parameters = msgspec.json.encode(request.parameters).decode()
        command = [sys.executable, "-m", PROGRAM, str(log), request.policy, *options]
        done = subprocess.run(
            [*command, "--parameters", parameters],
            env={**session.world.environ, "PYTHONSAFEPATH": "1"},
            capture_output=True,
            check=False,
        )
    return read_answer(done.stdout, done.stderr)


def read_answer(out: bytes, err: bytes) -> Compared:
    """What the process said. Raises the error that it tells of."""
    try:
        return msgspec.json.decode(out, type=Compared)
    except msgspec.MsgspecError:
        pass
    try:
        raise from_body(msgspec.json.decode(out, type=_Failed).error)
    except msgspec.MsgspecError as error:
        last = err.decode(errors="replace").strip().splitlines()[-1:]
        raise TensorCastError(f"The simulator broke: {' '.join(last)}") from error


def describe_comparison(found: Compared) -> Sequence[Block]:
    """The comparison for people."""
    told = found.review
    strange = len(told.strange) + len(told.missing)
    agrees = "exactly those in the log" if not strange else f"{strange} are not as in the log"
    return (
        Note(
            f"{tell_count(told.events, 'event')}. The policies that ran decide"
            f" {tell_count(told.decided, 'command')} anew:"
            f" {told.carried_out} carried out, {told.overtaken} overtaken; {agrees}."
        ),
        *_plan_note(told),
        *(Note(_fault(one)) for one in found.instead.faults),
        Heading("Recorded, simulated with the policies that ran, and with the other one"),
        _table(found),
    )


def _plan_note(told: Reviewed) -> Sequence[Note]:
    if not told.plan_events:
        return ()
    strange = len(told.plan_strange)
    agrees = "exactly as in the log" if not strange else f"{strange} otherwise than in the log"
    return (Note(f"Plans wrote {told.plan_events} events; the runner decides them {agrees}."),)


def _fault(one: Faulty) -> str:
    more = f", and {one.times - 1} times more" if one.times > 1 else ""
    return (
        f"Policy {one.policy} could not answer event {one.seq} ({one.type}, at"
        f" {format_time(one.at)}): {one.detail}{more}."
    )


def _table(found: Compared) -> Table:
    columns = (found.recorded, found.as_it_was, found.instead)
    rows = [
        ("operations", *(str(one.operations) for one in columns)),
        ("failures", *(str(one.failures) for one in columns)),
        ("bytes moved", *(format_size(one.bytes_moved) for one in columns)),
        ("hit ratio", *(_ratio(one) for one in columns)),
        ("needs", *(str(one.needs) for one in columns)),
        ("time to ready, median", *(_seconds(one, 0.5) for one in columns)),
        ("time to ready, p95", *(_seconds(one, 0.95) for one in columns)),
        ("evictions", *(str(one.evictions) for one in columns)),
        ("bytes evicted", *(format_size(one.evicted_bytes) for one in columns)),
        ("plans succeeded", *(str(one.plans) for one in columns)),
        ("plans failed", *(str(one.plans_failed) for one in columns)),
    ]
    return Table(
        titles=("", "recorded", "as it was", "instead"),
        rows=rows,
        right=frozenset({"recorded", "as it was", "instead"}),
    )


def _ratio(one: Measured) -> str:
    return f"{one.hits / one.needs:.1%}" if one.needs else "-"


def _seconds(one: Measured, share: float) -> str:
    if not one.ready_s:
        return "-"
    ordered = sorted(one.ready_s)
    return f"{ordered[min(len(ordered) - 1, int(share * len(ordered)))]:.3f} s"
