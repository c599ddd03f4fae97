"""`client.put_blocks` and `client.get_blocks` on a cluster of our own: producer and consumer on one
node, or on two (then the consumer's client fetches from the other node's mover over TCP)."""

from __future__ import annotations

import time

from contenders.blocks import held_bytes
from contenders.ours_cluster import VERSION, Cluster, reach, rest_of_work
from tensorcast.schema.blocks import pack_keys

ROOM = 5
"""A node keeps a quarter of its memory for blocks, unless it is told otherwise."""
FOUND_S_MAX = 20.0


class OneNode:
    """Both sides are clients of the same mover."""

    version = VERSION
    nodes = 1
    reader = "n1"

    @classmethod
    def serve(cls, options):
        dram = ROOM * held_bytes(options["works"]) + (64 << 20)
        cluster = Cluster(options["folder"], nodes=cls.nodes, dram_bytes=dram)
        return cluster, cluster.describe()

    def __init__(self, options, facts, ends, is_producer):
        self.pids = facts["pids"]
        self.client = reach(facts, "n1" if is_producer else self.reader)

    def name(self, keys):
        """The hashes that an engine would have: 8 to 32 bytes. Not timed; packing them is."""
        return [key.encode().rjust(16, b".")[-32:] for key in keys]

    def pack(self, hashes):
        return pack_keys("bench", hashes)

    def put(self, keys, views):
        stored = self.client.put_blocks(self.pack(keys), views)
        if any(answer != "stored" for answer in stored):
            raise RuntimeError(f"put_blocks answered {set(stored)}")

    def get(self, keys, views):
        if not all(self.client.get_blocks(self.pack(keys), into=views)):
            raise RuntimeError("get_blocks did not find all blocks")

    def view(self, keys):
        return self.client.get_blocks(self.pack(keys))

    def remove(self, keys):
        self.client.evict_blocks(self.pack(keys))
        self.settle()

    def expect(self, keys):
        """Waits until this node knows where the blocks are: it hears of them in batches."""
        deadline = time.monotonic() + FOUND_S_MAX
        while not all(self.client.exists(self.pack(keys))):
            if time.monotonic() > deadline:
                raise RuntimeError("the blocks of the other node do not become known")
            time.sleep(0.02)

    def settle(self):
        rest_of_work(self.pids)

    def close(self):
        self.client.close()


class TwoNodes(OneNode):
    """The consumer is a client of another mover."""

    nodes = 2
    reader = "n2"
