"""The whole public path from node to node: `client.get` on a node that does not have the artifact.
The request goes to its mover, which pulls all chunks from the other node's mover over TCP into
memory that was used before, verifies each, and hands out descriptors; the client maps them. Before
each turn the artifact is removed and put again, so that only its owner has it."""

from __future__ import annotations

from contenders.ends import Ends, timed
from contenders.ours_cluster import (
    VERSION,
    Cluster,
    compare_tensors,
    rest_of_work,
    tensors_of,
)

ROOM = 1.2


class Reader:
    """The client of the node that pulls."""

    def start(self, options):
        self.ends = Ends(options)
        works = self.ends.works
        dram = int(max(self.ends.size(work) for work in works) * ROOM) + (64 << 20)
        self.cluster = Cluster(options["folder"], nodes=2, dram_bytes=dram)
        self.pids = self.cluster.pids()
        self.owner, self.reader = self.cluster.connect("n1"), self.cluster.connect("n2")
        self.tensors = {
            work: tensors_of(self.ends.source[: self.ends.size(work)], self.ends.places(work))
            for work in works
        }
        self.artifact = None
        return {"version": VERSION}

    def prepare(self, work, turn):
        if self.artifact is not None:
            self.owner.api.remove_artifact(self.artifact, force=True)
            self.settle(work)
        self.artifact = self.owner.put(self.tensors[work]).id
        self.settle(work)

    def run(self, work, turn):
        return timed(lambda: self.get(work))

    def get(self, work):
        self.found = self.reader.get(self.artifact)

    def settle(self, work):
        rest_of_work(self.pids)

    def check(self, work, turn):
        compare_tensors(self.found, self.tensors[work])
        self.found = None

    def close(self):
        self.owner.close()
        self.reader.close()
        self.cluster.close()
