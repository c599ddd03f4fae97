"""The KV of a prompt as an artifact, against a pretended layer."""

from __future__ import annotations

import pytest
import torch

from tensorcast.engines.vllm.kv_artifacts import (
    MANIFEST,
    TOKENS,
    read_prompt,
    restore_blocks,
    seal_prompt,
)
from tensorcast.engines.vllm.operations import Manifest
from tensorcast.schema.blocks import BlockPut
from tensorcast.schema.errors import Corrupt, InvalidArgument, OutOfCapacity, Unavailable

SIZE, WHOLE = 4, 3
PROMPT = tuple(range(100, 114))
NAMED = Manifest(
    space="s",
    block_tokens=SIZE,
    hash="sha256",
    root=None,
    ranks=(0, 1),
    parts=1,
    hashes=tuple(f"{n:016x}" for n in range(WHOLE)),
)


class Layer:
    """Blocks by key, of another size for each rank, and artifacts by id."""

    def __init__(self) -> None:
        self.blocks: dict[bytes, bytes] = {}
        self.artifacts: dict[str, dict[str, torch.Tensor]] = {}
        self.has_room = True

    async def get_blocks(self, keys, *, into=None):
        found = [self.blocks.get(key) for key in keys]
        if into is None:
            return [None if one is None else memoryview(one) for one in found]
        for row, one in zip(into, found, strict=True):
            if one is not None:
                row[:] = torch.frombuffer(bytearray(one), dtype=torch.uint8)
        return [one is not None for one in found]

    async def put_blocks(self, keys, blocks):
        if not self.has_room:
            return [BlockPut.REJECTED] * len(keys)
        self.blocks.update(
            {key: bytes(row.tolist()) for key, row in zip(keys, blocks, strict=True)}
        )
        return [BlockPut.STORED] * len(keys)

    async def empty(self, spec):
        return {name: torch.zeros(shape, dtype=dtype) for name, (shape, dtype) in spec.items()}

    async def put(self, tensors, *, kind, labels, wait):
        assert (kind, labels, wait) == ("kv", {"space": "s", "tokens": "12"}, True)
        self.artifacts["a"] = tensors
        self.id = "a"
        return self

    async def get(self, artifact, *, check=False):
        return self.artifacts[artifact]


@pytest.fixture
def layer():
    layer = Layer()
    for at, key in enumerate(NAMED.keys()):
        layer.blocks[key] = bytes([at] * (8 if at % 2 else 16))
    return layer


async def test_what_was_sealed_is_restored_on_a_node_that_has_nothing(layer):
    kept = dict(layer.blocks)
    assert await seal_prompt(layer, PROMPT, NAMED) == "a"
    assert await read_prompt(layer, "a") == (PROMPT[: WHOLE * SIZE], NAMED)
    layer.blocks.clear()
    assert await restore_blocks(layer, "a") == (PROMPT[: WHOLE * SIZE], NAMED)
    assert layer.blocks == kept


async def test_blocks_that_are_gone_are_told(layer):
    for key in (NAMED.keys()[0], NAMED.keys()[-1]):
        content = layer.blocks.pop(key)
        with pytest.raises(Unavailable, match="evicted meanwhile"):
            await seal_prompt(layer, PROMPT, NAMED)
        layer.blocks[key] = content


async def test_a_prompt_shorter_than_a_block_has_none(layer):
    short = Manifest(
        space="s", block_tokens=SIZE, hash="h", root=None, ranks=(0,), parts=1, hashes=()
    )
    with pytest.raises(InvalidArgument, match="shorter than one block"):
        await seal_prompt(layer, PROMPT[:2], short)


async def test_a_node_without_room_is_told(layer):
    await seal_prompt(layer, PROMPT, NAMED)
    layer.has_room = False
    with pytest.raises(OutOfCapacity, match="no room"):
        await restore_blocks(layer, "a")


async def test_other_artifacts_are_none(layer):
    layer.artifacts["w"] = {"weight": torch.zeros(3)}
    with pytest.raises(InvalidArgument, match="no KV of a prompt"):
        await restore_blocks(layer, "w")


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        (TOKENS, torch.zeros(11, dtype=torch.int64)),
        (TOKENS, torch.zeros(3, 4, dtype=torch.int64)),
        (MANIFEST, torch.zeros(3, dtype=torch.uint8)),
        ("pieces.0", torch.zeros(2, 16, dtype=torch.uint8)),
        ("pieces.1", torch.zeros(24, dtype=torch.uint8)),
        ("pieces.1", torch.zeros(3, 0, dtype=torch.uint8)),
        ("pieces.2", torch.zeros(3, 8, dtype=torch.uint8)),
    ],
)
async def test_what_does_not_go_together_is_refused(layer, name, tensor):
    await seal_prompt(layer, PROMPT, NAMED)
    layer.artifacts["a"][name] = tensor
    before = dict(layer.blocks)
    with pytest.raises(Corrupt):
        await restore_blocks(layer, "a")
    assert layer.blocks == before
