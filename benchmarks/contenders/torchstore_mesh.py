"""torchstore on Monarch actors: a producer puts tensors into its volume, a consumer gets them in
place from there.

Its releases on the package index need a CUDA driver, so this is its repository: a checkout of it in
`torchstore/` of the cache folder (.cache/bench), or in the folder that BENCH_TORCHSTORE names.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from importlib.metadata import version

HOME = os.environ.get("BENCH_TORCHSTORE", "")
sys.path.insert(0, HOME)
os.environ["PYTHONPATH"] = f"{HOME}:{os.environ.get('PYTHONPATH', '')}"  # for its actors
os.environ.setdefault("TORCHSTORE_LOG_LEVEL", "ERROR")
os.environ.setdefault("HOSTNAME", socket.gethostname())

import torch  # noqa: E402
import torchstore  # noqa: E402
from monarch.actor import Actor, current_rank, endpoint, this_host  # noqa: E402
from torchstore.transport import TransportType  # noqa: E402

from contenders.ends import Ends, summarize  # noqa: E402
from harness.memory import map_memory  # noqa: E402


class Member(Actor):
    """Rank 0 produces, rank 1 consumes."""

    def __init__(self, pid, source_fd, source_bytes, target_fd, target_bytes):
        self.rank = current_rank().rank
        os.environ["LOCAL_RANK"] = os.environ["RANK"] = str(self.rank)
        self.source = self.open(pid, source_fd, source_bytes)
        self.target = self.open(pid, target_fd, target_bytes)

    def open(self, pid, fd, size):
        return torch.frombuffer(
            map_memory(os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR), size), dtype=torch.uint8
        )

    @endpoint
    async def ready(self):
        return None

    @endpoint
    async def put(self, groups):
        """Each group is one batch of (key, offset, size); answers the latencies in seconds."""
        if self.rank != 0:
            return None
        latencies = []
        for group in groups:
            tensors = {key: self.source[at : at + size] for key, at, size in group}
            begun = time.perf_counter()
            await torchstore.put_batch(tensors)
            latencies.append(time.perf_counter() - begun)
        return latencies

    @endpoint
    async def get(self, groups):
        """Gets each group in place."""
        if self.rank != 1:
            return None
        latencies = []
        for group in groups:
            tensors = {key: self.target[at : at + size] for key, at, size in group}
            begun = time.perf_counter()
            await torchstore.get_batch(tensors)
            latencies.append(time.perf_counter() - begun)
        return latencies

    @endpoint
    async def remove(self, keys):
        if self.rank == 0:
            await torchstore.delete_batch(keys)


class Mesh:
    """The worker: two actors and a store."""

    def start(self, options):
        self.ends = Ends(options)
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        self.there = {}
        self.loop.run_until_complete(self.open(options))
        return {"version": f"its repository, torchmonarch {version('torchmonarch')}"}

    async def open(self, options):
        mesh = this_host().spawn_procs(per_host={"gpus": 2})
        await mesh.initialized
        names = ("source_fd", "source_bytes", "target_fd", "target_bytes")
        self.members = mesh.spawn("members", Member, os.getpid(), *[options[n] for n in names])
        await self.members.ready.call()  # else two actors of a process import torchstore at once
        strategy = torchstore.LocalRankStrategy(TransportType[options["transport"]])
        await torchstore.initialize(num_storage_volumes=2, strategy=strategy, mesh=mesh)

    def call(self, name, rank, argument):
        return self.loop.run_until_complete(self.call_async(name, rank, argument))

    async def call_async(self, name, rank, argument):
        found = await getattr(self.members, name).call(argument)
        return [answer for _, answer in found][rank]

    def settle(self, work):
        self.loop.run_until_complete(asyncio.sleep(0))

    def close(self):
        self.loop.run_until_complete(torchstore.shutdown())


class Tensors(Mesh):
    """Weights: all tensors of a work in one batch; only the get is timed."""

    def prepare(self, work, turn):
        if self.there.get(work) is None:
            self.there[work] = [
                [(f"{work}/{n}", at, size) for n, (at, size) in enumerate(self.ends.places(work))]
            ]
            self.call("put", 0, self.there[work])

    def run(self, work, turn):
        return {"seconds": sum(self.call("get", 1, self.there[work]))}


class Blocks(Mesh):
    """KV blocks, in batches."""

    def groups(self, work, turn):
        about = self.ends.works[work]
        block, batch = about["block"], about["batch"]
        keys = [(f"{about['space']}/{turn}/{n}", n * block, block) for n in range(about["blocks"])]
        return [keys[n : n + batch] for n in range(0, len(keys), batch)]

    def prepare(self, work, turn):
        about = self.ends.works[work]
        old = self.there.get(about["space"])
        if about["kind"] == "put" and old is not None:
            self.call("remove", 0, [key for group in old for key, _, _ in group])
        if about["kind"] == "put":
            self.there[about["space"]] = self.groups(work, turn)

    def run(self, work, turn):
        about = self.ends.works[work]
        rank = 0 if about["kind"] == "put" else 1
        latencies = self.call(about["kind"], rank, self.there[about["space"]])
        return summarize(latencies, about["batch"])
