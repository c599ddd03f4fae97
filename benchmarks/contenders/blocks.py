"""KV blocks between two processes: a producer puts, this worker gets. What stores them is one of
the `*_store` modules: a class with

    serve(options)            starts servers, if it needs any; answers what clients must know
    Store(options, facts, ends, is_producer)    a client
    put(keys, views), get(keys, views), view(keys) -> buffers, remove(keys), close()
    name(keys) -> keys        what the system takes for a key in place of a text, if it does
    version                   of what is measured

Standard library only, so that it runs in every environment.
"""

from __future__ import annotations

import importlib
import time

from contenders.ends import Ends, start_other, summarize


def held_bytes(works) -> int:
    """The bytes of all blocks that are there at once: a put, a get and a view share theirs."""
    return sum({about["space"]: about["size"] for about in works.values()}.values())


def load_store(name: str):
    """The class of `module:Class`."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


class Side:
    """What both sides know: names, places and batches of the blocks of a work."""

    def __init__(self, options) -> None:
        self.ends = Ends(options)

    def keys(self, work, turn, store):
        about = self.ends.works[work]
        names = [f"{about['space']}-{turn}-{n:05}" for n in range(about["blocks"])]
        return store.name(names) if hasattr(store, "name") else names

    def views(self, memory, work):
        block = self.ends.works[work]["block"]
        count = self.ends.works[work]["blocks"]
        return [memory[n * block : (n + 1) * block] for n in range(count)]

    def in_batches(self, work, call, *columns):
        """Calls for each batch, with its part of each column; answers the latencies in seconds."""
        size = self.ends.works[work]["batch"]
        latencies = []
        for n in range(0, len(columns[0]), size):
            parts = [column[n : n + size] for column in columns]
            begun = time.perf_counter()
            call(*parts)
            latencies.append(time.perf_counter() - begun)
        return latencies


class Producer:
    """The other process."""

    def start(self, options):
        self.side = Side(options)
        store = load_store(options["store"])
        self.store = store(options, options["facts"], self.side.ends, is_producer=True)
        return {}

    def put(self, work, turn):
        keys = self.side.keys(work, turn, self.store)
        views = self.side.views(self.side.ends.source, work)
        latencies = self.side.in_batches(work, self.store.put, keys, views)
        return summarize(latencies, self.side.ends.works[work]["batch"])

    def remove(self, work, turn):
        self.store.remove(self.side.keys(work, turn, self.store))

    def settle(self):
        if hasattr(self.store, "settle"):
            self.store.settle()

    def close(self):
        self.store.close()


class Consumer:
    """The worker that the harness calls."""

    def start(self, options):
        store = load_store(options["store"])
        self.side = Side(options)
        self.server, facts = store.serve(options)
        self.producer, _ = start_other("contenders.blocks:Producer", {**options, "facts": facts})
        self.store = store(options, facts, self.side.ends, is_producer=False)
        self.there = {}
        return {"version": self.store.version}

    def prepare(self, work, turn):
        """Before a put: removes what the last turn put. Before a single get: puts, untimed."""
        about = self.side.ends.works[work]
        space = about["space"]
        if self.there.get(space, (work, turn))[1] != turn:
            self.producer.call("remove", work=work, turn=self.there.pop(space)[1])
        if space not in self.there:
            self.there[space] = (work, turn)
            if about["kind"] != "put":
                self.producer.call("put", work=work, turn=turn)
                self.producer.call("settle")
        if about["kind"] != "put" and hasattr(self.store, "expect"):
            self.store.expect(self.side.keys(work, turn, self.store))

    def run(self, work, turn):
        about = self.side.ends.works[work]
        if about["kind"] == "put":
            return self.producer.call("put", work=work, turn=turn)
        keys = self.side.keys(work, turn, self.store)
        if about["kind"] == "view":
            self.found = []
            view = lambda names: self.found.append(self.store.view(names))  # noqa: E731
            latencies = self.side.in_batches(work, view, keys)
        else:
            views = self.side.views(self.side.ends.target, work)
            latencies = self.side.in_batches(work, self.store.get, keys, views)
        return summarize(latencies, about["batch"])

    def settle(self, work):
        """A get leaves nothing behind; a put may (events, digests)."""
        if self.side.ends.works[work]["kind"] == "put":
            self.producer.call("settle")

    def check(self, work, turn):
        """What was got as views is compared here; copies the harness compares in the target."""
        if self.side.ends.works[work]["kind"] != "view":
            return
        found = [memoryview(view).cast("B") for group in self.found for view in group]
        expected = self.side.views(self.side.ends.source, work)
        if len(found) != len(expected):
            raise ValueError(f"{len(found)} blocks came instead of {len(expected)}")
        for number, (left, right) in enumerate(zip(found, expected, strict=True)):
            if bytes(left) != bytes(right):
                raise ValueError(f"block {number} has other bytes")
        self.found = []

    def close(self):
        self.producer.close()
        self.store.close()
        if self.server is not None:
            self.server.close()
