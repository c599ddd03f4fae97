"""How KV blocks look to people, and how their keys are written. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from tensorcast.cli.output import Block, Fields, Flow, Heading, Table
from tensorcast.cli.units import format_second, format_size, format_time
from tensorcast.schema.api import BlockCount, BlockInfo, EventInfo, NodeBlocks, SpaceBlocks
from tensorcast.schema.blocks import BlockKey
from tensorcast.schema.errors import InvalidArgument

NOTHING = BlockCount(blocks=0, bytes=0)


class _Data(msgspec.Struct):
    """What is shown of the data of a KV event."""

    node: str = ""
    engine: str = ""
    medium: str = ""
    tier: str = ""
    space: str = ""
    blocks: int = 0
    held_blocks: int = 0
    held_bytes: int = 0
    reason: str = ""


def parse_block_key(text: str) -> BlockKey:
    """A key as it is printed: SPACE/LAYER_GROUP/RANK/PREFIX, or SPACE/PREFIX for group 0 of rank
    0; PREFIX in hex. Raises InvalidArgument."""
    rest, _, prefix = text.rpartition("/")
    space, group, rank = rest, "0", "0"
    parts = rest.rsplit("/", 2)
    if len(parts) == 3 and parts[1].isdecimal() and parts[2].isdecimal():
        space, group, rank = parts
    try:
        return BlockKey(
            space=space, prefix=bytes.fromhex(prefix), layer_group=int(group), rank=int(rank)
        )
    except (ValueError, InvalidArgument) as error:
        said = error.message if isinstance(error, InvalidArgument) else "PREFIX is not hex."
        raise InvalidArgument(
            f"{text!r} is no key of a KV block: {said}",
            hint="Write SPACE/PREFIX or SPACE/LAYER_GROUP/RANK/PREFIX, PREFIX in hex.",
        ) from error


def table_stats(found: Sequence[NodeBlocks]) -> Table:
    """One node and tier a line; the counters of the mover beside its first tier."""
    rows = []
    for one in found:
        counters = ", ".join(f"{name} {count}" for name, count in one.counters.items())
        counts = [(str(tier), count) for tier, count in sorted(one.tiers.items())]
        for number, (tier, count) in enumerate(counts or [("", NOTHING)]):
            size = format_size(count.bytes)
            rows.append((one.node, tier, str(count.blocks), size, "" if number else counters))
    return Table(
        titles=("node", "tier", "blocks", "size", "counters"),
        rows=rows,
        right=frozenset({"blocks", "size"}),
        fold=frozenset({"counters"}),
        empty="No node is up.",
    )


def table_spaces(found: Sequence[SpaceBlocks]) -> Table:
    """One space a line."""
    return Table(
        titles=("space", "blocks", "size", "where"),
        rows=[
            (one.space, str(one.blocks), format_size(one.bytes), ", ".join(_places(one)))
            for one in found
        ],
        right=frozenset({"blocks", "size"}),
        fold=frozenset({"where"}),
        empty="No node holds a KV block.",
    )


def _places(one: SpaceBlocks) -> Iterator[str]:
    for node, tiers in one.nodes.items():
        for tier, count in tiers.items():
            yield f"{node}/{tier} {count.blocks}"


def describe_block(info: BlockInfo) -> Sequence[Block]:
    """Everything about one block."""
    pairs = (
        ("space", info.space),
        ("prefix", info.prefix),
        ("layers", str(info.layer_group)),
        ("rank", str(info.rank)),
    )
    holders = Table(
        titles=("node", "tier", "size", "since"),
        rows=[
            (one.node, one.tier, format_size(one.bytes), format_time(one.since))
            for one in info.holders
        ],
        right=frozenset({"size"}),
        empty="No node that is up holds it.",
    )
    events = Table(
        titles=("seq", "at", "type", "node", "tier", "size"),
        rows=[
            (
                str(one.seq),
                format_second(one.at),
                one.type,
                f"{one.node} (epoch {one.epoch})",
                one.tier,
                format_size(one.bytes) if one.bytes else "",
            )
            for one in info.events
        ],
        right=frozenset({"seq", "size"}),
        empty="No events.",
    )
    return (Fields(pairs), Heading("Where"), holders, Heading("Events"), events)


def block_flow(pages: Iterator[Sequence[EventInfo]]) -> Flow:
    """KV events as they come, page by page."""
    return Flow(pages=pages, table=_table_events, brief=_brief, empty="No KV events.")


def _brief(item: object) -> str:
    return item.id if isinstance(item, EventInfo) else ""


def _table_events(page: Sequence[object]) -> Table:
    events = [item for item in page if isinstance(item, EventInfo)]
    return Table(
        titles=("seq", "at", "type", "node", "tier", "space", "blocks", "holds"),
        rows=[(str(one.seq), format_second(one.at), one.type, *_content(one)) for one in events],
        right=frozenset({"seq", "blocks"}),
        fold=frozenset({"space", "holds"}),
        empty="No KV events.",
    )


def _content(one: EventInfo) -> tuple[str, str, str, str, str]:
    try:
        data = msgspec.json.decode(one.data, type=_Data)
    except msgspec.MsgspecError:
        return ("?", "", "", "", "an event of a newer release")
    if data.engine:
        blocks = str(data.blocks) if data.blocks else ""
        holds = str(data.held_blocks) if data.blocks else data.reason
        return (data.engine, data.medium, "", blocks, holds)
    if not data.space:
        return (data.node, "", "", "", data.reason)
    holds = f"{data.held_blocks} ({format_size(data.held_bytes)})"
    if data.reason:
        holds = f"{holds}; {data.reason}"
    return (data.node, data.tier, data.space, str(data.blocks), holds)
