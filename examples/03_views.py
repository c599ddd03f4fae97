"""Only the part that a rank needs: shards and slices of a checkpoint, without a copy.

tcctl up && python examples/03_views.py
"""

from __future__ import annotations

import sys

import torch

import tensorcast as tc

RULES = {r".*q_proj\.weight": 0, r".*o_proj\.weight": 1}


def main() -> None:
    checkpoint = {
        f"layers.{layer}.{name}": torch.randn(shape)
        for layer in range(2)
        for name, shape in {
            "q_proj.weight": (256, 64),
            "o_proj.weight": (64, 256),
            "norm.weight": (64,),
        }.items()
    }
    with tc.connect() as client:
        artifact = client.put(checkpoint)
        for rank in range(2):
            view = tc.View.shard(rank=rank, world=2, rules=RULES)
            shard = client.get(artifact.id, view=view)
            print(f"rank {rank}: " + ", ".join(f"{n} {tuple(t.shape)}" for n, t in shard.items()))
        norms = client.get(artifact.id, view=tc.View.tensors(r".*norm\.weight"))
        print(f"norms: {', '.join(norms)}")
        client.api.remove_artifact(artifact.id)


if __name__ == "__main__":
    try:
        main()
    except tc.TensorCastError as error:
        sys.exit(f"Error: {error}")
