"""How the lineage of an artifact looks to people. Pure: values to tables."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from tensorcast.cli.output import Block, Fields, Heading, Table, shorten
from tensorcast.cli.units import format_second
from tensorcast.schema.api import ServedInfo
from tensorcast.schema.api_past import LineageInfo, MadeInfo, NamedSpan


def describe_lineage(info: LineageInfo) -> Sequence[Block]:
    """The artifact, and what it has to do with others; what there is none of is left out."""
    labels = ", ".join(f"{name}={value}" for name, value in sorted(info.labels.items()))
    blocks: list[Block] = [
        Fields(
            (
                ("artifact", info.artifact),
                ("kind", info.kind),
                ("state", info.state),
                ("labels", labels),
                ("sealed", f"{format_second(info.sealed_at)} (#{info.sealed_seq})"),
                ("by", info.sealed_by),
            )
        )
    ]
    parts = (
        ("Made from", table_made(info.sources)),
        ("Made into", table_made(info.results)),
        ("Keys that pointed to it", table_spans(info.keys)),
        ("Engines that served it", table_served(info.engines)),
    )
    for title, table in parts:
        if table.rows:
            blocks += [Heading(title), table]
    return blocks


def table_made(made: Sequence[MadeInfo]) -> Table:
    """Other artifacts, and how one was made from the other."""
    return Table(
        titles=("artifact", "by", "seq"),
        rows=[(shorten(one.artifact), one.by or "?", str(one.seq)) for one in made],
        right=frozenset({"seq"}),
    )


def table_spans(spans: Sequence[NamedSpan]) -> Table:
    """Keys, from when to when."""
    return Table(
        titles=("key", "from", "until", "by", "events"),
        rows=[
            (
                one.key,
                format_second(one.since),
                _until(one.until),
                one.actor,
                f"#{one.since_seq}" + (f" - #{one.until_seq}" if one.until_seq else ""),
            )
            for one in spans
        ],
    )


def table_served(spans: Sequence[ServedInfo]) -> Table:
    """Engines, from when to when."""
    return Table(
        titles=("engine", "from", "until", "version"),
        rows=[
            (one.engine, format_second(one.since), _until(one.until), one.version) for one in spans
        ],
    )


def _until(moment: datetime | None) -> str:
    return "now" if moment is None else format_second(moment)
