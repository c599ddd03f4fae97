"""A KV log that has every type of event, as a release writes it: `python tests/kv_story.py
VERSION` (with `tests` on the path) records it, once for each release."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from block_samples import cleared, evicted, keys, stored
from tensorcast.controlplane.store.block_rows import fold_holdings
from tensorcast.controlplane.store.engine_block_rows import fold_engines
from tensorcast.schema.block_events import BlockDraft, KvEvent, decode_blocks, encode_blocks
from tensorcast.schema.engine_blocks import (
    EngineBlocksCleared,
    EngineBlocksEvicted,
    EngineBlocksStored,
)
from tensorcast.schema.ids import EngineId, EventId, Seq, Tier

LOGS = Path(__file__).parent / "replay"
START = datetime(2030, 1, 1, tzinfo=UTC)
ENGINE = {"engine": EngineId("e1"), "life": "life-1"}
HELD = {**ENGINE, "medium": "gpu", "group": 0, "hash_bytes": 8}


def events() -> tuple[KvEvent, ...]:
    """Nodes n1 and n2 and an engine: each begins, stores, evicts; n2 lives twice."""
    some = keys(6)
    return (
        cleared("n1"),
        stored(some),
        stored(some[:2], tier=Tier.DISK, sizes=(4096, 8192)),
        evicted(some[4:], reason="asked"),
        cleared("n2"),
        stored(some[:3], node="n2"),
        cleared("n2", epoch=2, reason="again"),
        stored(some[3:], node="n2", epoch=2),
        EngineBlocksCleared(**ENGINE, batch=1, is_exact=True, reason="start"),
        EngineBlocksStored(
            **HELD,
            batch=2,
            hashes=bytes(range(24)),
            held_blocks=3,
            block_tokens=16,
            prefixes=bytes(range(48)),
        ),
        EngineBlocksEvicted(**HELD, batch=3, hashes=bytes(range(8)), held_blocks=2),
    )


def record() -> tuple[bytes, ...]:
    """The events as they are written."""
    return tuple(
        encode_blocks(
            BlockDraft(
                id=EventId(f"01941f29-7c00-7000-8000-{number:012x}"),
                at=START + timedelta(seconds=number),
                actor="mover:n1",
                event=event,
            )
        )
        for number, event in enumerate(events(), 1)
    )


def fold(lines: list[bytes]) -> object:
    """What the control plane keeps after a recorded KV log, as JSON."""
    recorded = [decode_blocks(line, Seq(number)) for number, line in enumerate(lines, 1)]
    nodes = fold_holdings({}, recorded)
    engines = fold_engines({}, recorded)
    said = {
        "holdings": sorted(
            [*place, held.epoch, held.blocks, held.size_bytes, held.seq]
            for place, held in nodes.holdings.items()
        ),
        "speakers": {
            node: [one.epoch, one.cleared_seq] for node, one in sorted(nodes.speakers.items())
        },
        "engines": {name: msgspec.to_builtins(told) for name, told in engines.views.items()},
    }
    return msgspec.json.decode(msgspec.json.encode(said))


def write(version: str, folder: Path = LOGS) -> None:
    """Records the story as the KV log of a release. Raises FileExistsError: it is recorded once."""
    lines = record()
    with (folder / f"kv-{version}.ndjson").open("xb") as file:
        file.writelines(line + b"\n" for line in lines)
    text = msgspec.json.format(msgspec.json.encode(fold(list(lines))), indent=1)
    (folder / f"kv-{version}.fold.json").write_bytes(text + b"\n")


if __name__ == "__main__":
    write(sys.argv[1])
