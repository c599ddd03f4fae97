"""The same surface, awaitable: put, wait and replicate several artifacts at once.

tcctl up --nodes 2 && python examples/04_async.py
"""

from __future__ import annotations

import asyncio
import sys

import torch

import tensorcast as tc


async def main() -> None:
    async with tc.connect_async() as client:
        contents = [{"adapter": torch.full((256, 256), float(n))} for n in range(4)]
        artifacts = await asyncio.gather(
            *(client.put(tensors, kind="adapter") for tensors in contents)
        )
        replications = await asyncio.gather(
            *(client.replicate(artifact.id, to="all") for artifact in artifacts)
        )
        await asyncio.gather(*(replication.wait(timeout=60) for replication in replications))
        # A lease keeps the replicas from eviction for as long as the block runs.
        async with client.lease(artifacts[0].id, ttl=30):
            tensors = await client.get(artifacts[0].id)
            print(f"{artifacts[0].id[:12]}: {tensors['adapter'].shape}")
        for artifact in artifacts:
            nodes = sorted({replica.node for replica in await artifact.replicas()})
            print(f"{artifact.id[:12]} is on {', '.join(nodes)}")


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except tc.TensorCastError as error:
        sys.exit(f"Error: {error}")
