"""How inference engines look to people. Pure: values to tables."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from tensorcast.cli.output import Block, Fields, Heading, Table, shorten
from tensorcast.cli.units import format_age, format_second, format_time
from tensorcast.schema.api import EngineInfo, ServedInfo

CACHE_USAGE = "cache_usage"


def table_engines(found: Sequence[EngineInfo], now: datetime) -> Table:
    """One engine a line."""
    return Table(
        titles=("engine", "state", "node", "weights", "artifact", "since", "cache", "url"),
        rows=[
            (
                one.engine,
                one.state,
                one.node or "",
                one.version,
                shorten(one.artifact),
                format_age(one.since, now) if one.since else "",
                _percent(one.load.get(CACHE_USAGE)),
                one.url,
            )
            for one in found
        ],
        right=frozenset({"since", "cache"}),
        fold=frozenset({"engine", "weights"}),
        empty="No engine is registered.",
    )


def describe_engine(info: EngineInfo) -> Sequence[Block]:
    """Everything about one engine, and the weights that it served."""
    load = (f"{name}={value:g}" for name, value in sorted(info.load.items()))
    pairs = (
        ("engine", info.engine),
        ("state", info.state),
        ("kind", info.kind),
        ("node", info.node or ""),
        ("url", info.url),
        ("model", info.model),
        ("weights", info.version),
        ("artifact", info.artifact or ""),
        ("since", format_time(info.since) if info.since else ""),
        ("cache", _percent(info.load.get(CACHE_USAGE))),
        ("load", ", ".join(load)),
        ("labels", ", ".join(f"{name}={value}" for name, value in info.labels.items())),
        ("life", info.life),
        ("registered", format_time(info.registered_at)),
    )
    return (Fields(pairs), Heading("Served"), table_served(info.served))


def table_served(served: Sequence[ServedInfo]) -> Table:
    """One time of serving a line."""
    return Table(
        titles=("seq", "weights", "artifact", "from", "to"),
        rows=[
            (
                str(one.seq),
                one.version,
                shorten(one.artifact),
                format_second(one.since),
                format_second(one.until) if one.until else "now",
            )
            for one in served
        ],
        right=frozenset({"seq"}),
        fold=frozenset({"weights"}),
        empty="It has not told of any weights.",
    )


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"
