"""What a request may ask of the connector about its own KV, beside its completion. Pure.

`kv_transfer_params: {"tensorcast": {"manifest": true}}` has the response say what the request's
blocks are called and where they belong; `"evict": true` has the engine forget them at its end;
`"apart": true` keeps the request apart from the layer: nothing of it is loaded or saved.
`operations.py` makes use of both.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

PARAMETERS = "kv_transfer_params"
"""The field of requests and answers in which vLLM carries what is meant for connectors."""
OURS = "tensorcast"
PUBLIC_HASHES = frozenset({"sha256", "sha256_cbor"})
"""Algorithms whose beginning may be told: of the others it is a secret that keeps collisions
away."""


class Inquiry(NamedTuple):
    """What a request asks for."""

    manifest: bool = False
    evict: bool = False
    apart: bool = False


class Naming(NamedTuple):
    """How an engine names blocks: tokens of each, algorithm, and what its chains begin with."""

    block_tokens: int
    algorithm: str
    root: bytes


def read_inquiry(said: Mapping[str, object] | None) -> Inquiry:
    """What the `kv_transfer_params` of a request ask for; anything else asks for nothing."""
    ours = (said or {}).get(OURS)
    if not isinstance(ours, Mapping):
        return Inquiry()
    return Inquiry(*(ours.get(name) is True for name in Inquiry._fields))


def make_manifest(
    naming: Naming,
    space: str | None,
    ranks: Sequence[int],
    parts: int,
    hashes: Sequence[bytes],
    stored: Collection[int],
) -> dict[str, object]:
    """What the response says: the blocks of a request in order, in hex, and which of them are in
    the layer already or on their way there."""
    is_public = naming.algorithm in PUBLIC_HASHES
    return {
        "space": space,
        "block_tokens": naming.block_tokens,
        "hash": naming.algorithm,
        "root": naming.root.hex() if is_public else None,
        "ranks": list(ranks),
        "parts": parts,
        "hashes": [hash_.hex() for hash_ in hashes],
        "stored": sorted(number for number in stored if number < len(hashes)),
    }


def with_manifest(
    told: Mapping[str, object] | None, manifest: Mapping[str, object]
) -> dict[str, object]:
    """What the response says in all."""
    before = (told or {}).get(OURS)
    ours = {**(before if isinstance(before, Mapping) else {}), **manifest}
    return {**(told or {}), OURS: ours}
