"""The engine's cache as tables of runs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tensorcast.engines.vllm.connector import memory
from tensorcast.engines.vllm.connector.memory import CacheMemory, Guard, split_layers
from tensorcast.schema.errors import Cancelled, InvalidArgument

BLOCKS, HEADS, TOKENS, WIDTH = 6, 2, 4, 8
RUN = HEADS * TOKENS * WIDTH * 4


def one_allocation(layers: int) -> dict[str, torch.Tensor]:
    """As vLLM makes it: all layers in one piece of memory, which begins with something else."""
    whole = torch.zeros(16 + layers * BLOCKS * RUN, dtype=torch.uint8)
    return {
        f"layer{n}": whole[16 + n * BLOCKS * RUN :][: BLOCKS * RUN]
        .view(torch.float32)
        .view(BLOCKS, HEADS, TOKENS, WIDTH)
        for n in range(layers)
    }


def own_allocations(layers: int) -> dict[str, torch.Tensor]:
    """Each layer by itself, with different distances and widths."""
    return {f"layer{n}": torch.zeros(BLOCKS, HEADS, TOKENS, WIDTH + n) for n in range(layers)}


@pytest.mark.parametrize("make", [one_allocation, own_allocations])
@pytest.mark.parametrize("layers", [1, 2, 5])
def test_a_block_is_that_of_all_layers(make, layers):
    caches = make(layers)
    for cache in caches.values():
        cache.copy_(torch.randn(cache.shape))
    found = CacheMemory(caches)
    target = bytearray(found.block_bytes)
    (part,) = found.pieces(3)
    part.copy_to(memoryview(target))
    assert target == b"".join(cache[3].numpy().tobytes() for cache in caches.values())
    before = {name: cache.clone() for name, cache in caches.items()}
    (other,) = found.pieces(4)
    other.copy_from(memoryview(bytes(target)))
    for name, cache in caches.items():
        assert torch.equal(cache[4], before[name][3])
        keep = [0, 1, 2, 3, 5]
        assert torch.equal(cache[keep], before[name][keep])


def test_layers_of_one_allocation_are_one_table():
    assert len(CacheMemory(one_allocation(4)).tables[0]) == 1


def test_large_blocks_are_cut_between_layers(monkeypatch):
    monkeypatch.setattr(memory, "PART_BYTES_MAX", 2 * RUN)
    caches = one_allocation(5)
    found = CacheMemory(caches)
    assert found.part_bytes == (2 * RUN, 2 * RUN, RUN)
    assert found.parts == len(found.pieces(0)) == 3
    caches["layer4"][2] = 7.0
    target = bytearray(RUN)
    found.pieces(2)[2].copy_to(memoryview(target))
    assert np.frombuffer(target, np.float32).tolist() == [7.0] * (RUN // 4)


def test_a_layer_alone_may_be_larger():
    layers = [np.zeros((2, size), np.uint8) for size in (5, 20, 5, 4, 3)]
    groups = split_layers(layers, 10)
    assert [[layer.shape[1] for layer in group] for group in groups] == [[5], [20], [5, 4], [3]]


def test_a_layout_that_does_not_count_blocks_first_is_refused():
    with pytest.raises(InvalidArgument, match="not contiguous"):
        CacheMemory({"layer": torch.zeros(2, BLOCKS, TOKENS).transpose(0, 1)})
    with pytest.raises(InvalidArgument, match="no KV cache"):
        CacheMemory({})


def test_a_cache_that_is_not_in_the_hosts_memory_is_refused():
    with pytest.raises(InvalidArgument, match="is on meta"):
        CacheMemory({"layer": torch.zeros(BLOCKS, 4, device="meta")})


def test_what_was_given_up_is_not_read():
    guard = Guard()
    (part,) = CacheMemory(one_allocation(2)).guarded(1, guard)
    target = bytearray(part.nbytes)
    part.copy_to(memoryview(target))
    guard.give_up()
    with pytest.raises(Cancelled):
        part.copy_to(memoryview(target))
