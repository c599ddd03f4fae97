"""NIXL with its UCX backend on host memory. UCX_TLS in the environment chooses TCP; left to itself
it goes through shared memory on one machine."""

from __future__ import annotations

import base64
import os
from importlib.metadata import version

os.environ.setdefault("NIXL_LOG_LEVEL", "ERROR")

from nixl_cu12._api import nixl_agent, nixl_agent_config

from contenders.ends import Ends, start_other, summarize, timed


def make_agent(name: str):
    """An agent with a progress thread and UCX alone."""
    return nixl_agent(name, nixl_agent_config(True, False, 0, backends=["UCX"]))


class Owner:
    """The side that only registers its memory and tells where it is."""

    def start(self, options):
        ends = self.ends = Ends(options)
        self.agent = make_agent("owner")
        is_writing = options.get("mode") == "WRITE"
        memory = ends.target if is_writing else ends.source
        address = ends.target_address if is_writing else ends.source_address
        self.agent.register_memory([(address, len(memory), 0, "")], "DRAM")
        metadata = base64.b64encode(self.agent.get_agent_metadata()).decode()
        return {"metadata": metadata, "base": address}


class Agent:
    """The side that posts the transfers."""

    def start(self, options):
        self.ends = Ends(options)
        self.mode = options.get("mode", "READ")
        self.owner, facts = start_other("contenders.nixl_agent:Owner", options)
        self.base = facts["base"]
        self.agent = make_agent("agent")
        is_writing = self.mode == "WRITE"
        self.local = self.ends.source_address if is_writing else self.ends.target_address
        memory = self.ends.source if is_writing else self.ends.target
        self.agent.register_memory([(self.local, len(memory), 0, "")], "DRAM")
        self.peer = self.agent.add_remote_agent(base64.b64decode(facts["metadata"]))
        self.make_handles()
        return {"version": version("nixl-cu12")}

    def make_handles(self):
        self.handles = {work: self.make_handle(self.ends.places(work)) for work in self.ends.works}

    def make_handle(self, places):
        local = [(self.local + at, size, 0) for at, size in places]
        remote = [(self.base + at, size, 0) for at, size in places]
        return self.agent.initialize_xfer(
            self.mode,
            self.agent.get_xfer_descs(local, "DRAM"),
            self.agent.get_xfer_descs(remote, "DRAM"),
            self.peer,
        )

    def transfer(self, handle):
        state = self.agent.transfer(handle)
        while state != "DONE":
            if state == "ERR":
                raise RuntimeError("the transfer failed")
            state = self.agent.check_xfer_state(handle)

    def run(self, work, turn):
        return timed(lambda: self.transfer(self.handles[work]))

    def close(self):
        self.owner.close()


class Blocks(Agent):
    """The same for blocks: lists of descriptors are prepared once, each batch names some."""

    def make_handles(self):
        self.lists = {work: self.make_lists(about) for work, about in self.ends.works.items()}

    def make_lists(self, about):
        block = about["block"]
        places = [n * block for n in range(about["blocks"])]
        local = [(self.local + at, block, 0) for at in places]
        remote = [(self.base + at, block, 0) for at in places]
        return (
            self.agent.prep_xfer_dlist("NIXL_INIT_AGENT", local, "DRAM"),
            self.agent.prep_xfer_dlist(self.peer, remote, "DRAM"),
        )

    def read(self, work, numbers):
        local, remote = self.lists[work]
        handle = self.agent.make_prepped_xfer(self.mode, local, numbers, remote, numbers, b"")
        self.transfer(handle)
        self.agent.release_xfer_handle(handle)

    def run(self, work, turn):
        about = self.ends.works[work]
        batch = about["batch"]
        groups = [
            list(range(n, min(n + batch, about["blocks"])))
            for n in range(0, about["blocks"], batch)
        ]
        latencies = [timed(lambda g=group: self.read(work, g))["seconds"] for group in groups]
        return summarize(latencies, batch)
