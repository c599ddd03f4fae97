"""`client.put` and `client.get` on one node of a cluster of our own."""

from __future__ import annotations

from contenders.ours_cluster import VERSION, Cluster, reach, rest_of_work
from contenders.shares import Way

SLACK_BYTES = 512 << 20
OTHER_SHARE = 0.7


class OneNode(Way):
    """Both sides are clients of the same mover."""

    version = VERSION
    slack_bytes = SLACK_BYTES

    @classmethod
    def serve(cls, options):
        largest = max(about["size"] for about in options["works"].values())
        room = largest + largest // 8 + cls.slack_bytes
        cluster = Cluster(options["folder"], nodes=1, dram_bytes=room)
        return cluster, cluster.describe()

    def __init__(self, options, facts, ends, is_owner):
        self.pids = facts["pids"]
        self.client = reach(facts)
        self.key = "state@1"

    def publish(self, work, tensors):
        self.artifact = self.client.put(tensors, key=self.key)

    def finish(self):
        self.artifact.wait()

    def get(self, work):
        return self.client.get(self.key)

    def withdraw(self, work):
        self.client.api.remove_artifact(self.artifact.id, force=True)
        self.settle()

    def settle(self):
        rest_of_work(self.pids)

    def close(self):
        self.client.close()


class OneNodeFresh(OneNode):
    """The node has no memory that was used before, as after its start. A put of another size just
    before makes it give back what it kept, and what that put leaves does not fit."""

    slack_bytes = 16 << 20

    def prepare(self, work, tensors):
        made = super().prepare(work, tensors)
        count = max(1, int(len(made) * OTHER_SHARE))
        other = self.client.put(dict(list(made.items())[:count]))
        self.client.api.remove_artifact(other.id, force=True)
        self.settle()
        return made


class OneNodeEmpty(OneNode):
    """The tensors were made by `client.empty`, so a put has nothing to copy."""

    def prepare(self, work, tensors):
        made = self.client.empty(tensors)
        for name, tensor in tensors.items():
            made[name].copy_(tensor)
        return made
