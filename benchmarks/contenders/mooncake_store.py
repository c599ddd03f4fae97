"""MooncakeStore over TCP with its own master: the producer holds the segment; batches as its
`batch_put_from` and `batch_get_into` on registered memory."""

from __future__ import annotations

import os
import time
from importlib.metadata import version

import mooncake
from mooncake.store import MooncakeDistributedStore

from contenders.blocks import held_bytes
from contenders.ends import free_port
from contenders.servers import Server

BUFFER_BYTES = 64 << 20
LEASE_S = 5.0


class MooncakeStore:
    """A client; the producer's also holds the blocks."""

    version = version("mooncake-transfer-engine-non-cuda")

    @classmethod
    def serve(cls, options):
        port = free_port()
        master = os.path.join(mooncake.__path__[0], "mooncake_master")
        command = [master, f"--rpc_port={port}", f"--metrics_port={free_port()}"]
        return Server([*command, "--rpc_address=127.0.0.1"], port, options), {"port": port}

    def __init__(self, options, facts, ends, is_producer):
        # Twice the blocks of all works at once, since leases keep the removed ones for 5 s.
        total = 2 * held_bytes(ends.works) + (256 << 20)
        self.store = MooncakeDistributedStore()
        code = self.store.setup(
            "127.0.0.1",
            "P2PHANDSHAKE",
            total if is_producer else 0,
            BUFFER_BYTES,
            "tcp",
            "",
            f"127.0.0.1:{facts['port']}",
        )
        self.demand(code == 0, f"setup answered {code}")
        memory = ends.source if is_producer else ends.target
        self.base = ends.source_address if is_producer else ends.target_address
        self.origin = memory
        code = self.store.register_buffer(self.base, len(memory))
        self.demand(code == 0, f"register_buffer answered {code}")

    def demand(self, is_good, text):
        if not is_good:
            raise RuntimeError(text)

    def places(self, keys, views):
        size = len(views[0])
        return [self.base + int(key[-5:]) * size for key in keys], [len(view) for view in views]

    def put(self, keys, views):
        addresses, sizes = self.places(keys, views)
        if len(keys) == 1:
            codes = [self.store.put_from(keys[0], addresses[0], sizes[0])]
        else:
            codes = self.store.batch_put_from(list(keys), addresses, sizes)
        self.demand(not any(codes), f"put answered {codes[:3]}")

    def get(self, keys, views):
        addresses, sizes = self.places(keys, views)
        if len(keys) == 1:
            found = [self.store.get_into(keys[0], addresses[0], sizes[0])]
        else:
            found = self.store.batch_get_into(list(keys), addresses, sizes)
        self.demand(list(found) == sizes, f"get answered {list(found)[:3]}")

    def remove(self, keys):
        """Blocks are leased for 5 s after a get; it refuses to remove them before."""
        deadline = time.monotonic() + LEASE_S + 1
        left = list(keys)
        while left and time.monotonic() < deadline:
            left = [key for key in left if self.store.remove(key) not in (0, -704)]
            if left:
                time.sleep(0.2)

    def close(self):
        self.store.close()
