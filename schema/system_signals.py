"""The topics that TensorCast itself speaks on, and what is said there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tensorcast.schema.shapes import Shape, optional, record
from tensorcast.schema.signals import Pattern

WEIGHTS_PUBLISHED: Final = "weights.published"
REPLICA_READY: Final = "replica.ready"
NODE_JOINED: Final = "node.joined"
NODE_LEFT: Final = "node.left"
NODE_LOST: Final = "node.lost"
MEMORY_PRESSURE: Final = "memory.pressure"
KV_STORED: Final = "kv.stored"
KV_EVICTED: Final = "kv.evicted"
ARCHIVED: Final = "tensorcast.store.archived"
DEAD: Final = "dead"
"""What readers gave up is said on `dead.<reader>`."""

_REPLICA: Final = record(artifact="string", node="string", tier="string")
_NODE: Final = record(node="string", epoch="integer")

SHAPES: Final[Mapping[Pattern, Shape]] = {
    Pattern(WEIGHTS_PUBLISHED): record(key="string"),
    Pattern(REPLICA_READY): _REPLICA,
    Pattern(KV_STORED): _REPLICA,
    Pattern(KV_EVICTED): _REPLICA,
    Pattern(NODE_JOINED): _NODE,
    Pattern(NODE_LEFT): _NODE,
    Pattern(NODE_LOST): record(node="string", epoch="integer", silent_s="number"),
    Pattern(MEMORY_PRESSURE): record(node="string", tier="string", needed_bytes="integer"),
    Pattern("engine.load.*"): record(
        running="number",
        waiting=optional("number"),
        cache_usage=optional("number"),
        ttft_s=optional("number"),
    ),
    Pattern(ARCHIVED): record(
        log_epoch="integer", first="integer", last="integer", path="string", sha256="string"
    ),
    Pattern(f"{DEAD}.*"): record(
        topic="string", seq="integer", id="string", delivery="integer", reason="string"
    ),
}
"""What the data of these topics must have; more fields may be there."""
