"""Ray: an actor puts into the object store of the node, another one gets from it."""

from __future__ import annotations

import os
import time

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_DEDUP_LOGS", "0")

import numpy
import ray

from contenders.ends import Ends, summarize
from harness.memory import cut
from harness.processes import memory_bytes

MIB = 1 << 20
STORE_SLACK_BYTES = 512 * MIB


def start_ray(store_bytes: int) -> None:
    """A cluster of this machine alone, with room for these bytes."""
    ray.init(
        address="local",
        num_cpus=2,
        object_store_memory=store_bytes,
        include_dashboard=False,
        logging_level="ERROR",
        _node_ip_address="127.0.0.1",
    )


class Actor:
    """One side. It reads the memory of the harness through the descriptors of the worker that
    started Ray: actors are no children of it and inherit none."""

    def __init__(self, pid, options):
        self.pid = pid
        opened = dict(options)
        for name in ("source_fd", "target_fd"):
            opened[name] = os.open(f"/proc/{pid}/fd/{options[name]}", os.O_RDWR)
        self.ends = Ends(opened)
        self.found = []

    def put(self, places, size):
        """Puts arrays of these places in batches of `size`; answers references and latencies."""
        arrays = [numpy.frombuffer(self.ends.source[at : at + n], numpy.uint8) for at, n in places]
        references, latencies = [], []
        for first in range(0, len(arrays), size):
            begun = time.perf_counter()
            references += [ray.put(array) for array in arrays[first : first + size]]
            latencies.append(time.perf_counter() - begun)
        return references, latencies

    def get(self, references, places, size, is_copied):
        """Gets them, and copies each to its place in the target."""
        self.found, latencies = [], []
        targets = [self.ends.target[at : at + n] for at, n in places]
        for first in range(0, len(references), size):
            begun = time.perf_counter()
            found = ray.get(references[first : first + size])
            for array, target in zip(found, targets[first : first + size], strict=True):
                if is_copied:
                    target[:] = array.data
            latencies.append(time.perf_counter() - begun)
            self.found += found
        return latencies

    def put_dict(self, places):
        """Puts all places as one dict of arrays."""
        arrays = {
            str(n): numpy.frombuffer(self.ends.source[at : at + size], numpy.uint8)
            for n, (at, size) in enumerate(places)
        }
        begun = time.perf_counter()
        reference = ray.put(arrays)
        return [reference], time.perf_counter() - begun

    def get_dict(self, references):
        """Gets the dict; answers seconds and the MiB of memory of its own that this took."""
        own = memory_bytes(os.getpid(), "RssAnon")
        begun = time.perf_counter()
        found = ray.get(references[0])
        seconds = time.perf_counter() - begun
        self.found = list(found.values())
        return seconds, (memory_bytes(os.getpid(), "RssAnon") - own) / MIB

    def check(self, places):
        """Compares what was got with the source."""
        for array, (at, size) in zip(self.found, places, strict=True):
            if bytes(array.data) != bytes(self.ends.source[at : at + size]):
                raise ValueError(f"the bytes at {at} differ")
        self.found = []


class Pair:
    """The worker: two actors and what was put last."""

    def start(self, options):
        self.ends = Ends(options)
        largest = max(self.ends.size(work) for work in self.ends.works)
        start_ray(2 * largest + STORE_SLACK_BYTES)
        actor = ray.remote(num_cpus=0.5)(Actor)
        self.producer = actor.remote(os.getpid(), options)
        self.consumer = actor.remote(os.getpid(), options)
        self.references = {}
        return {"version": ray.__version__}

    def close(self):
        ray.shutdown()


class Blocks(Pair):
    """KV blocks: an object for each."""

    def prepare(self, work, turn):
        about = self.ends.works[work]
        places = [(n * about["block"], about["block"]) for n in range(about["blocks"])]
        self.places, self.size = places, about["batch"]
        if about["kind"] == "put":
            self.references.pop(about["space"], None)
        elif about["space"] not in self.references:
            self.put(about)

    def put(self, about):
        references, latencies = ray.get(self.producer.put.remote(self.places, self.size))
        self.references[about["space"]] = references
        return summarize(latencies, self.size)

    def run(self, work, turn):
        about = self.ends.works[work]
        if about["kind"] == "put":
            return self.put(about)
        references = self.references[about["space"]]
        is_copied = about["kind"] == "get"
        latencies = self.consumer.get.remote(references, self.places, self.size, is_copied)
        return summarize(ray.get(latencies), self.size)

    def check(self, work, turn):
        if self.ends.works[work]["kind"] != "put":
            ray.get(self.consumer.check.remote(self.places))


class Share(Pair):
    """A state dict as one object."""

    def prepare(self, work, turn):
        about = self.ends.works[work]
        self.places = cut(about["size"], about["count"])
        if about["kind"] == "put":
            self.references.clear()
        elif not self.references:
            self.put()

    def put(self):
        references, seconds = ray.get(self.producer.put_dict.remote(self.places))
        self.references[0] = references
        return {"seconds": seconds}

    def run(self, work, turn):
        if self.ends.works[work]["kind"] == "put":
            return self.put()
        seconds, own_mib = ray.get(self.consumer.get_dict.remote(self.references[0]))
        return {"seconds": seconds, "own_mib": own_mib}

    def check(self, work, turn):
        if self.ends.works[work]["kind"] == "get":
            ray.get(self.consumer.check.remote(self.places))
