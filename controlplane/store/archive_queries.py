"""Questions that the files of an archive answer, as the tables would. They take a look at columns,
not at each event: a file of 262,144 events takes some hundredths of a second. They block.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from tensorcast.controlplane.store.archive_files import seen_at
from tensorcast.controlplane.store.archives import Segment, reach_all
from tensorcast.controlplane.store.cells import as_integer, as_moment, as_text, as_uuid
from tensorcast.controlplane.store.event_infos import About, EventRow, event_info, like_of
from tensorcast.controlplane.store.rows import UNREADABLE, read_event
from tensorcast.log.port import Stored
from tensorcast.schema.api import AuditQuery, EventInfo
from tensorcast.schema.errors import Corrupt
from tensorcast.schema.events import AggregateKind
from tensorcast.schema.ids import EventId, Seq
from tensorcast.storage.log_parquet import load_pyarrow

if TYPE_CHECKING:
    from pyarrow.compute import Expression
    from pyarrow.dataset import Dataset

_READ = ["seq", "subject", "payload", "seen_at"]


def search(
    segments: Sequence[Segment],
    query: AuditQuery,
    about: About | None,
    issued: Sequence[str],
    limit: int,
) -> tuple[EventInfo, ...]:
    """The first (with `newest` the last) `limit` events of these files that meet all conditions, in
    order. `issued` are the operations of `query.plan`. Raises NotFound for a file that is not
    there, Corrupt for one that cannot be read."""
    wanted = _conditions(query, about, issued)
    return _infos(_find(segments, wanted, limit, newest=query.newest))


def search_id(segments: Sequence[Segment], event: EventId) -> EventInfo | None:
    """The event with this id. Raises as `search`."""
    names = list({event, str(as_uuid(event))})
    found = _find(segments, _among("id", names), 1, newest=True)
    return next(iter(_infos(found)), None)


def search_effects(
    segments: Sequence[Segment], causes: Sequence[EventId], limit: int
) -> tuple[EventInfo, ...]:
    """The first events with one of these causes. Raises as `search`."""
    names = [name for one in causes for name in {one, str(as_uuid(one))}]
    return _infos(_find(segments, _among("cause", names), limit))


def search_aggregate(segments: Sequence[Segment], kind: str, name: str) -> list[Stored]:
    """All events about one thing, in order. Raises as `search`."""
    wanted = _is_about(kind, name)
    return [stored for stored, _ in _find(segments, wanted, sum(map(_count, segments)))]


def search_seqs(segments: Sequence[Segment], seqs: Sequence[Seq], kind: str) -> list[Stored]:
    """The events at these positions that are about a kind of thing. Raises as `search`."""
    wanted = _field("seq").isin(list(seqs)) & (_field("aggregate_kind") == kind)
    return [stored for stored, _ in _find(segments, wanted, len(seqs))]


def seq_at(segments: Sequence[Segment], moment: datetime, skew: timedelta) -> Seq:
    """The last event that is not later than a time, where clocks of writers differ by `skew` at
    most; 0 when there is none. Raises as `search`."""
    for path in reversed(reach_all(segments)):
        table = _dataset(path).to_table(columns=["seq", "at"], filter=_field("at") <= moment)
        times = [at for at in table["at"].to_pylist() if at is not None]
        if times:
            nearest = max(times) - skew
            rows = zip(table["seq"].to_pylist(), table["at"].to_pylist(), strict=True)
            return Seq(max(seq for seq, at in rows if at is not None and at >= nearest))
    return Seq(0)


def _count(segment: Segment) -> int:
    return segment.last - segment.first + 1


def _find(
    segments: Sequence[Segment], wanted: Expression, limit: int, *, newest: bool = False
) -> list[tuple[Stored, datetime]]:
    """The first or last events that are wanted, in order, with when they were seen."""
    found: list[tuple[Stored, datetime]] = []
    paths = reach_all(segments)
    for path in reversed(paths) if newest else paths:
        left = limit - len(found)
        if left <= 0:
            break
        try:
            seqs = sorted(
                _dataset(path).to_table(columns=["seq"], filter=wanted)["seq"].to_pylist()
            )
            chosen = seqs[-left:] if newest else seqs[:left]
            rows = _read(path, chosen) if chosen else []
        except (OSError, load_pyarrow()[0].ArrowException) as error:
            raise Corrupt(
                f"The archive {path} cannot be read: {error}.",
                hint="`tcctl audit verify` tells more.",
            ) from error
        found = [*rows, *found] if newest else [*found, *rows]
    return found


def _read(path: Path, seqs: Sequence[int]) -> list[tuple[Stored, datetime]]:
    near = (_field("seq") >= seqs[0]) & (_field("seq") <= seqs[-1])
    table = _dataset(path).to_table(columns=_READ, filter=near & _field("seq").isin(list(seqs)))
    rows = sorted(table.to_pylist(), key=lambda row: row["seq"])
    return [(Stored(Seq(r["seq"]), r["subject"], r["payload"]), seen_at(r)) for r in rows]


def _infos(found: Sequence[tuple[Stored, datetime]]) -> tuple[EventInfo, ...]:
    infos = []
    for stored, seen in found:
        one = read_event(stored, seen)
        row = EventRow(
            stored.seq,
            one.id,
            as_text(one.type),
            as_integer(one.v),
            as_moment(one.at),
            as_text(one.actor),
            stored.payload,
        )
        infos.append(event_info(row))
    return tuple(infos)


# ---- conditions ------------------------------------------------------------------------------


def _field(name: str) -> Expression:
    load_pyarrow()
    from pyarrow.compute import field

    return field(name)


def _conditions(query: AuditQuery, about: About | None, issued: Sequence[str]) -> Expression:
    """As `queries.py` asks the tables."""
    wanted = _field("seq") > query.since
    if query.before is not None:
        wanted &= _field("seq") < query.before
    for one in _abouts(query, about):
        wanted &= _concerns(one)
    if query.plan is not None:
        wanted &= _is_of_plan(as_text(query.plan), issued)
    if query.types:
        of_types = [_matches("type", one, UNREADABLE) for one in query.types]
        wanted &= _any(of_types)
    if query.type is not None:
        wanted &= _matches("type", query.type, UNREADABLE)
    if query.actor is not None:
        wanted &= _matches("actor", query.actor, "")
    if query.cause is not None:
        wanted &= _among("cause", [query.cause, str(as_uuid(query.cause))])
    if query.time_from is not None:
        moment = as_moment(query.time_from)
        wanted &= (_field("at") >= moment) | (_field("seen_at") >= moment)
    if query.time_to is not None:
        moment = as_moment(query.time_to)
        wanted &= (_field("at") <= moment) | (_field("seen_at") <= moment)
    return wanted


def _abouts(query: AuditQuery, about: About | None) -> list[About]:
    named = (
        (AggregateKind.ARTIFACT, query.artifact),
        (AggregateKind.NODE, query.node),
        (AggregateKind.KEY, query.key),
        (AggregateKind.OPERATION, query.operation),
        (AggregateKind.ENGINE, query.engine),
    )
    found = [About(kind, str(name)) for kind, name in named if name is not None]
    return found if about is None else [about, *found]


def _concerns(about: About) -> Expression:
    name = as_text(about.id)
    if about.kind is AggregateKind.ARTIFACT:
        left = (_field("aggregate_kind") == AggregateKind.KEY.value) & (
            _field("previous") == about.id
        )
        return (_field("artifact") == name) | left
    if about.kind is AggregateKind.NODE:
        return _field("node") == name
    return _is_about(about.kind.value, name)


def _is_about(kind: str, name: str) -> Expression:
    return (_field("aggregate_kind") == kind) & (_field("aggregate_id") == name)


def _is_of_plan(plan: str, issued: Sequence[str]) -> Expression:
    is_operation = _field("aggregate_kind") == AggregateKind.OPERATION.value
    return _any(
        [
            _is_about(AggregateKind.PLAN.value, plan),
            _field("actor") == plan,
            is_operation & _among("aggregate_id", issued),
        ]
    )


def _matches(column: str, pattern: str, of_unreadable: str) -> Expression:
    """Whether a column matches; one that nobody can read is as if it had `of_unreadable`."""
    from pyarrow.compute import match_like

    pattern = as_text(pattern)
    if "*" in pattern:
        found = match_like(_field(column), like_of(pattern))
    else:
        found = _field(column) == pattern
    if fnmatchcase(of_unreadable, pattern.replace("[", "[[]").replace("?", "[?]")):
        found |= _field(column).is_null()
    return found


def _among(column: str, names: Sequence[str]) -> Expression:
    pyarrow, _ = load_pyarrow()
    return _field(column).isin(pyarrow.array(names, pyarrow.string()))


def _any(conditions: Sequence[Expression]) -> Expression:
    first, *others = conditions
    for one in others:
        first |= one
    return first


def _dataset(path: Path) -> Dataset:
    from pyarrow import dataset

    return dataset.dataset(str(path), format="parquet")
