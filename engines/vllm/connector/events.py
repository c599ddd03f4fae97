"""Blocks that came into the store, as vLLM's KV events: beside those of the engine's own cache."""

from __future__ import annotations

from collections.abc import Sequence

from vllm.distributed.kv_events import MEDIUM_STORAGE, BlockStored
from vllm.v1.core.kv_cache_utils import BlockHash, maybe_convert_block_hash

from tensorcast.engines.vllm.connector.tracks import Track


def stored_events(kept: Sequence[tuple[Track, list[int]]], block_size: int) -> list[BlockStored]:
    """One event for each run of neighbours."""
    return [
        _event(track, run[0], run[-1] + 1, block_size)
        for track, numbers in kept
        for run in split_runs(numbers)
    ]


def split_runs(numbers: Sequence[int]) -> list[list[int]]:
    """Rising numbers as runs without gaps."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] + 1 == number:
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs


def _event(track: Track, first: int, stop: int, block_size: int) -> BlockStored:
    hashes = [BlockHash(hash_) for hash_ in track.hashes[first:stop]]
    parent = BlockHash(track.hashes[first - 1]) if first else None
    return BlockStored(
        block_hashes=[maybe_convert_block_hash(hash_) for hash_ in hashes],
        parent_block_hash=maybe_convert_block_hash(parent) if parent is not None else None,
        token_ids=list(track.tokens[first * block_size : stop * block_size]),
        block_size=block_size,
        lora_id=None,
        medium=MEDIUM_STORAGE,
        lora_name=None,
    )
