"""The KV of a prompt as an artifact of its own: to be replicated, kept on disk or in a store, named
by a key, and read back into the layer on any node. It is whole by itself.

`tokens`     the prompt's whole blocks
`manifest`   what their blocks are called, as JSON
`pieces.N`   piece N of each block, one a row, as the engine laid it out
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from tensorcast.engines.vllm.calls import decode
from tensorcast.engines.vllm.operations import Manifest
from tensorcast.schema.blocks import BlockPut
from tensorcast.schema.errors import Corrupt, InvalidArgument, OutOfCapacity, Unavailable

if TYPE_CHECKING:
    import torch

    from tensorcast.client.session import AsyncClient

KIND: Final = "kv"
TOKENS: Final = "tokens"
MANIFEST: Final = "manifest"


class Prompt(NamedTuple):
    """The tokens of a prompt, and what its blocks are called where that is known already."""

    tokens: tuple[int, ...]
    manifest: Manifest | None = None


async def seal_prompt(client: AsyncClient, tokens: Sequence[int], manifest: Manifest) -> str:
    """Makes an artifact of blocks that are in the layer, on the node of this machine; its id.
    Raises Unavailable when some are gone, InvalidArgument for a prompt without a whole block,
    OutOfCapacity."""
    import torch

    if not manifest.hashes:
        raise InvalidArgument("The prompt is shorter than one block, so it has no KV to be put.")
    keys, each = manifest.keys(), manifest.pieces
    whole = len(manifest.hashes)
    content = msgspec.json.encode(manifest)
    spec: dict[str, tuple[Sequence[int], torch.dtype]] = {
        TOKENS: ((whole * manifest.block_tokens,), torch.int64),
        MANIFEST: ((len(content),), torch.uint8),
    }
    for piece, view in enumerate(await client.get_blocks(keys[:each])):
        if view is None:
            raise _gone()
        spec[name_piece(piece)] = ((whole, view.nbytes), torch.uint8)
    tensors = await client.empty(spec)
    tensors[TOKENS][:] = torch.tensor(list(tokens[: len(tensors[TOKENS])]))
    tensors[MANIFEST][:] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    for piece in range(each):
        if not all(await client.get_blocks(keys[piece::each], into=tensors[name_piece(piece)])):
            raise _gone()
    labels = {"space": manifest.space or "", "tokens": str(len(tensors[TOKENS]))}
    artifact = await client.put(tensors, kind=KIND, labels=labels, wait=True)
    return artifact.id


async def read_prompt(client: AsyncClient, artifact: str) -> Prompt:
    """The prompt of such an artifact. Raises NotFound, InvalidArgument for one that is none."""
    tensors = await client.get(artifact)
    return _parse(tensors)


async def restore_blocks(client: AsyncClient, artifact: str) -> Prompt:
    """Puts the blocks of such an artifact into the layer, on the node of this machine, which brings
    it first if it must. Raises as `read_prompt`, OutOfCapacity when the node has no room."""
    tensors = await client.get(artifact, check=True)
    prompt = _parse(tensors)
    assert prompt.manifest is not None
    keys, each = prompt.manifest.keys(), prompt.manifest.pieces
    for piece in range(each):
        put = await client.put_blocks(keys[piece::each], tensors[name_piece(piece)])
        if BlockPut.REJECTED in put:
            raise OutOfCapacity("The node has no room for all blocks of the prompt.")
    return prompt


def name_piece(piece: int) -> str:
    """What the tensor of a piece of all blocks is called."""
    return f"pieces.{piece}"


def _parse(tensors: dict[str, torch.Tensor]) -> Prompt:
    """The prompt, of tensors that go together. Raises InvalidArgument, Corrupt."""
    if TOKENS not in tensors or MANIFEST not in tensors:
        raise InvalidArgument(
            "The artifact is no KV of a prompt.", hint="`publish` with `as_artifact` makes one."
        )
    manifest = decode(bytes(tensors[MANIFEST].tolist()), Manifest)
    tokens, whole = tensors[TOKENS], len(manifest.hashes)
    names = {name_piece(piece) for piece in range(manifest.pieces)}
    is_sound = names == tensors.keys() - {TOKENS, MANIFEST} and tokens.dim() == 1
    if not is_sound or len(tokens) != whole * manifest.block_tokens:
        raise Corrupt("The artifact's manifest says other things than its tensors.")
    for name in names:
        if tensors[name].dim() != 2 or len(tensors[name]) != whole or not tensors[name].numel():
            raise Corrupt(f"The artifact's {name} are not the pieces of {whole} blocks.")
    return Prompt(tuple(int(token) for token in tokens.tolist()), manifest)


def _gone() -> Unavailable:
    return Unavailable(
        "Some blocks of the prompt were evicted meanwhile.", hint="Publish it once more."
    )
