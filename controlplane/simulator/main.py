"""`python -m tensorcast.controlplane.simulator.main LOG POLICY`: a backtest as a process.

LOG is a copy of the log, POLICY a file with policies or the name of one. Prints a `Comparison` as
JSON. It runs where `tcctl policy backtest` runs, never in a control plane.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from tensorcast.controlplane.core.catalog import Catalog, Forced, Kind
from tensorcast.controlplane.services.policy_files import load_catalog, load_file
from tensorcast.controlplane.services.watchdog import Pending, Watchdog
from tensorcast.controlplane.settings import TOPOLOGY
from tensorcast.controlplane.simulator.backtest import Comparison, compare
from tensorcast.controlplane.simulator.log_file import read_events
from tensorcast.controlplane.simulator.plans import signal_of
from tensorcast.schema.cluster import ClusterView, project
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.errors import InvalidArgument, NotFound, TensorCastError, Timeout, to_body
from tensorcast.schema.guesses import suggest
from tensorcast.schema.signals import Signal

DECISION_S_MAX: Final = 10.0
TIMES_FROM: Final = 1e9
"""What is larger is a time (after 2001), no position."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints what came of it (exit status 0), or an error as JSON (1)."""
    parser = argparse.ArgumentParser(prog="tensorcast.controlplane.simulator", description=__doc__)
    parser.add_argument("log", type=Path)
    parser.add_argument("policy")
    parser.add_argument("--from", dest="first", help="a position, or a time (RFC 3339)")
    parser.add_argument("--to", dest="last", help="a position, or a time (RFC 3339)")
    parser.add_argument("--parameters", default="{}", help="of the policy, as JSON")
    parser.add_argument(
        "--decision-timeout",
        type=float,
        default=DECISION_S_MAX,
        help="seconds that one decision of a policy may take",
    )
    given = parser.parse_args(arguments)
    gc.disable()  # views share nearly everything, and live until the end
    try:
        parameters = msgspec.json.decode(given.parameters, type=dict[str, object])
        dog = Watchdog(given.decision_timeout, _end)
        dog.start()
        found = backtest(given.log, given.policy, given.first, given.last, parameters, dog)
    except TensorCastError as error:
        sys.stdout.buffer.write(msgspec.json.encode({"error": to_body(error)}))
        return 1
    sys.stdout.buffer.write(msgspec.json.encode(found))
    return 0


def _end(pending: Pending, times: int, told: str) -> None:
    """The end of a process that a policy does not return from."""
    error = Timeout(
        told, hint="A policy answers at once and never waits; --decision-timeout gives it longer."
    )
    sys.stdout.buffer.write(msgspec.json.encode({"error": to_body(error)}))
    sys.stdout.buffer.flush()
    os._exit(1)


def backtest(
    log: Path,
    policy: str,
    first: str | None,
    last: str | None,
    parameters: dict[str, object],
    dog: Watchdog | None = None,
) -> Comparison:
    """Compares the policies that ran with those of `policy`, over part of a log; `dog` watches
    their decisions. Raises NotFound, InvalidArgument, Corrupt."""
    files = filter(None, os.environ.get("TENSORCAST_POLICIES", "").split(os.pathsep))
    before = load_catalog(TOPOLOGY, [Path(name) for name in files])
    before = dog.watch(before) if dog else before
    instead = choose(before, policy, parameters, dog)
    starts, ends = parse_place(first), parse_place(last)
    view, events = ClusterView(), []
    earlier: list[Signal] = []
    for recorded in read_events(log):
        if ends is not None and place_like(recorded, ends) > ends:
            break
        if starts is not None and place_like(recorded, starts) < starts:
            view = project(view, recorded)
            earlier += filter(None, (signal_of(recorded),))
        else:
            events.append(recorded)
    if not events:
        raise InvalidArgument("There are no events in that time.", hint="Look at --from and --to.")
    return compare(view, events, before, instead, earlier=earlier)


def choose(
    before: Catalog, policy: str, parameters: dict[str, object], dog: Watchdog | None = None
) -> Catalog:
    """The policies that ran, and beside or instead of them those in a file, or the one of this
    name. Raises NotFound, InvalidArgument."""
    kinds = _find_kinds(before, policy, dog)
    if parameters and len(kinds) > 1:
        raise InvalidArgument(f"{policy} has several policies; parameters are for one.")
    catalog = before
    for kind in kinds:
        catalog = Forced(catalog, kind, parameters)
    return catalog


def _find_kinds(before: Catalog, policy: str, dog: Watchdog | None) -> list[Kind]:
    path = Path(policy)
    if path.exists() or path.suffix == ".py" or os.sep in policy:
        return [dog.watch_kind(kind) if dog else kind for kind in load_file(path)]
    if policy not in before.kinds:
        raise NotFound(
            f"{policy!r} is neither a file nor a policy that is known"
            f"{suggest(policy, before.kinds) or '.'}",
            hint=f"Known are {', '.join(before.kinds)}.",
        )
    return [before.find(policy)]


def parse_place(text: str | None) -> float | None:
    """A position, or a time as seconds since 1970, which no position is as large as. Raises
    InvalidArgument."""
    if text is None or text.isdigit():
        return None if text is None else float(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidArgument(f"{text!r} is neither a position nor a time.") from error
    if moment.tzinfo is None:
        raise InvalidArgument(f"The time {text} has no zone.")
    return moment.timestamp()


def place_like(recorded: Recorded, place: float) -> float:
    """The event's position, or its time where a time is meant."""
    return recorded.at.timestamp() if place >= TIMES_FROM else float(recorded.seq)


if __name__ == "__main__":
    sys.exit(main())
