"""KV blocks: put what is absent, read it without a copy, from this node and from others.

tcctl up --nodes 2 && python examples/05_kv_blocks.py
"""

from __future__ import annotations

import hashlib
import sys

import torch

import tensorcast as tc

BLOCKS, SHAPE = 32, (2, 16, 8, 128)  # keys and values, 16 tokens, 8 heads: 64 KiB in bfloat16
SPACE = "demo-weights-1/bf16"  # what makes blocks exchangeable: weights, dtype, layout


def prefixes(tokens: list[list[int]]) -> list[bytes]:
    """As engines do: each block's hash covers all tokens up to its end."""
    found, last = [], b""
    for block in tokens:
        last = hashlib.sha256(last + str(block).encode()).digest()
        found.append(last)
    return found


def main() -> None:
    tokens = [list(range(at, at + 16)) for at in range(0, BLOCKS * 16, 16)]
    keys = tc.pack_keys(SPACE, prefixes(tokens))
    blocks = torch.randn(BLOCKS, *SHAPE).to(torch.bfloat16)
    with tc.connect() as client:
        client.evict_blocks(space=SPACE)
        print(f"hits      {sum(client.exists(keys))} of {BLOCKS}")

        # One request for all; each block is stored, or existed, or found no room.
        print(f"put       {set(client.put_blocks(keys, blocks))}")
        print(f"again     {set(client.put_blocks(keys, blocks))}")

        # Read-only tensors in the node's memory. They stay what they are while they are used.
        views = client.get_blocks(keys, dtype=torch.bfloat16, shape=SHAPE)
        print(f"equal     {all(torch.equal(v, b) for v, b in zip(views, blocks, strict=True))}")

        # Into memory of the engine's own: here, one tensor for all.
        target = torch.empty_like(blocks)
        print(f"copied    {all(client.get_blocks(keys, into=target, verify=True))}")

        # What is not there is None, or False: item by item, and no error.
        other = tc.BlockKey(SPACE, prefix=bytes(32))
        print(f"absent    {client.get_blocks([keys[0], other])[1]}")

        # Another node has them after they were put there, or fetches them from here.
        nodes = [one.node for one in client.api.nodes() if one.node != client.context.default_node]
        for node in nodes[:1]:
            client.put_blocks(keys[:8], blocks[:8], node=node)
            print(f"elsewhere {sum(client.exists(keys, node=node))} of {BLOCKS} on {node}")
        print(f"evicted   {client.evict_blocks(space=SPACE)}")


if __name__ == "__main__":
    try:
        main()
    except tc.TensorCastError as error:
        sys.exit(f"Error: {error}")
