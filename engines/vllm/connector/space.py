"""The space of an engine's blocks: a name for everything that must be equal where KV is shared.

vLLM's own hash of a block covers its tokens and all before them, and what belongs to the request
(LoRA, images, salt). It does not cover the model, the weights, or how the bytes lie. All of that is
in the name of the space: two engines find each other's blocks only if they agree in every fact.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from itertools import product

from tensorcast.schema.blocks import pack_part

Fact = str | int | float | bool | None
"""One fact; lists and maps are given as their JSON."""

SLUG_CHARACTERS_MAX = 20
DIGEST_BYTES = 16

_PLACES = ("_name_or_path", "transformers_version", "_commit_hash", "architectures_source")
"""What a model's configuration says of where it came from, not of what it computes."""


def name_space(model: str, facts: Mapping[str, Fact]) -> str:
    """The space for these facts: readable in front, and a digest of them all, whatever their order.
    `model` is for people only: it is no fact."""
    slug = re.sub(r"[^A-Za-z0-9.]+", "-", model.rstrip("/").rpartition("/")[2]).strip("-")
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    digest = hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).hexdigest()
    return f"vllm:{slug[:SLUG_CHARACTERS_MAX] or 'model'}:{digest}"


def digest_of(text: str) -> str:
    """A short digest of a long fact."""
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).hexdigest()


def describe_configuration(configuration: Mapping[str, object]) -> str:
    """A model's configuration as a fact: what it computes, not where it was found."""
    kept = {name: value for name, value in configuration.items() if name not in _PLACES}
    return json.dumps(kept, sort_keys=True, default=str, separators=(",", ":"))


def block_keys(
    space: str, hashes: Sequence[bytes], ranks: Sequence[int], parts: int
) -> list[bytes]:
    """The packed keys of blocks: for each hash those of all ranks, for each rank those of all
    parts."""
    beginnings = [pack_part(space, part, rank) for rank, part in product(ranks, range(parts))]
    return [beginning + hash_ for hash_ in hashes for beginning in beginnings]
