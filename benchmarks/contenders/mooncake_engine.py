"""Mooncake's TransferEngine over TCP with its peer-to-peer handshake: one-sided reads and writes of
registered memory."""

from __future__ import annotations

from importlib.metadata import version

from mooncake.engine import TransferEngine

from contenders.ends import Ends, start_other, summarize, timed


def make_engine() -> TransferEngine:
    """An engine on the loopback interface."""
    engine = TransferEngine()
    code = engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "")
    if code:
        raise RuntimeError(f"TransferEngine.initialize answered {code}")
    return engine


class Owner:
    """The side that only registers its memory."""

    def start(self, options):
        ends = self.ends = Ends(options)
        self.engine = make_engine()
        is_writing = options.get("mode") == "write"
        address = ends.target_address if is_writing else ends.source_address
        size = len(ends.target) if is_writing else len(ends.source)
        self.engine.register_memory(address, size)
        return {"address": f"127.0.0.1:{self.engine.get_rpc_port()}", "base": address}


class Engine:
    """The side that posts the transfers: reads into the target, or writes out of the source."""

    def start(self, options):
        self.ends = Ends(options)
        self.engine = make_engine()
        self.owner, facts = start_other("contenders.mooncake_engine:Owner", options)
        self.address, self.base = facts["address"], facts["base"]
        self.mode = options.get("mode", "read")
        is_writing = self.mode == "write"
        self.local = self.ends.source_address if is_writing else self.ends.target_address
        size = len(self.ends.source) if is_writing else len(self.ends.target)
        self.engine.register_memory(self.local, size)
        return {"version": version("mooncake-transfer-engine-non-cuda")}

    def transfer(self, places):
        """All pieces with one call."""
        local = [self.local + at for at, _ in places]
        remote = [self.base + at for at, _ in places]
        sizes = [size for _, size in places]
        if len(places) == 1:
            move = getattr(self.engine, f"transfer_sync_{self.mode}")
            code = move(self.address, local[0], remote[0], sizes[0])
        else:
            move = getattr(self.engine, f"batch_transfer_sync_{self.mode}")
            code = move(self.address, local, remote, sizes)
        if code:
            raise RuntimeError(f"the transfer answered {code}")

    def run(self, work, turn):
        return timed(lambda: self.transfer(self.ends.places(work)))

    def close(self):
        self.owner.close()


class Blocks(Engine):
    """The same for blocks: reads of many small places that the reader knows already."""

    def run(self, work, turn):
        about = self.ends.works[work]
        block, batch = about["block"], about["batch"]
        places = [(n * block, block) for n in range(about["blocks"])]
        groups = [places[n : n + batch] for n in range(0, len(places), batch)]
        latencies = [timed(lambda g=group: self.transfer(g))["seconds"] for group in groups]
        return summarize(latencies, batch)
