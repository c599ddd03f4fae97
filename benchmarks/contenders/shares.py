"""Sharing a state dict on one node: an owner publishes it, this worker gets it. What publishes and
gets is a class, as in `blocks.py`:

    serve(options)                        starts servers; answers what clients must know
    Way(options, facts, ends, is_owner)   a client
    publish(work, tensors), get(work) -> tensors by name, withdraw(work), close()

`get` is timed until every tensor is there as an object; its pages are touched after, by the check.
"""

from __future__ import annotations

import gc
import os
import time

import torch

from contenders.blocks import load_store
from contenders.ends import Ends, start_other
from harness.processes import memory_bytes

MIB = 1 << 20


def make_tensors(ends: Ends, work: str) -> dict[str, torch.Tensor]:
    """The state dict of a work, as views of the source. What is larger than the source repeats
    it."""
    whole = torch.frombuffer(ends.source, dtype=torch.uint8)
    room = len(ends.source)
    found = {}
    for n, (at, size) in enumerate(ends.places(work)):
        first = at % room if at % room + size <= room else 0
        found[f"layers.{n:03}.weight"] = whole[first : first + size]
    return found


class Owner:
    """The other process."""

    def start(self, options):
        self.ends = Ends(options)
        way = load_store(options["way"])
        self.way = way(options, options["facts"], self.ends, is_owner=True)
        return {}

    def prepare(self, work):
        """Makes what is published; not timed."""
        self.tensors = self.way.prepare(work, make_tensors(self.ends, work))

    def publish(self, work):
        begun = time.perf_counter()
        self.way.publish(work, self.tensors)
        seconds = time.perf_counter() - begun
        self.way.finish()
        self.tensors = None
        return {"seconds": seconds}

    def withdraw(self, work):
        self.way.withdraw(work)

    def serve(self, work):
        self.way.serve_one(work)

    def settle(self):
        self.way.settle()

    def close(self):
        self.way.close()


class Way:
    """What most ways need not say."""

    version = ""
    is_asked = False

    @classmethod
    def serve(cls, options):
        return None, {"path": os.path.join(options["folder"], f"share-{os.getpid()}.sock")}

    def prepare(self, work, tensors):
        """Ordinary tensors in memory of their own, as a model has them."""
        return {name: tensor.clone() for name, tensor in tensors.items()}

    def finish(self):
        """After what is timed: a put may go on behind it."""

    def settle(self):
        pass

    def close(self):
        pass


class Reader:
    """The worker."""

    def start(self, options):
        self.ends = Ends(options)
        way = load_store(options["way"])
        self.server, facts = way.serve(options)
        self.owner, _ = start_other("contenders.shares:Owner", {**options, "facts": facts})
        self.way = way(options, facts, self.ends, is_owner=False)
        self.there = None
        self.found = None
        return {"version": self.way.version}

    def prepare(self, work, turn):
        about = self.ends.works[work]
        space = f"{about['size']}"
        if about["kind"] == "put" or self.there != space:
            if self.there is not None:
                self.owner.call("withdraw", work=work)
            self.owner.call("prepare", work=work)
            self.there = None
        if about["kind"] == "get" and self.there is None:
            self.owner.call("publish", work=work)
            self.there = space
            self.owner.call("settle")
        gc.collect()

    def run(self, work, turn):
        about = self.ends.works[work]
        if about["kind"] == "put":
            found = self.owner.call("publish", work=work)
            self.there = f"{about['size']}"
            return found
        own = memory_bytes(os.getpid(), "RssAnon")
        if self.way.is_asked:
            self.owner.post("serve", work=work)
        begun = time.perf_counter()
        self.found = self.way.get(work)
        seconds = time.perf_counter() - begun
        if self.way.is_asked:
            self.owner.wait()
        gained = memory_bytes(os.getpid(), "RssAnon") - own
        return {"seconds": seconds, "own_mib": gained / MIB}

    def settle(self, work):
        self.owner.call("settle")

    def check(self, work, turn):
        if self.ends.works[work]["kind"] != "get":
            return
        expected = make_tensors(self.ends, work)
        if sorted(self.found) != sorted(expected):
            raise ValueError("other tensors came than were published")
        for name, tensor in expected.items():
            if not torch.equal(self.found[name], tensor):
                raise ValueError(f"{name} has other bytes")
        self.found = None

    def close(self):
        self.owner.close()
        self.way.close()
        if self.server is not None:
            self.server.close()
