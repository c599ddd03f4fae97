"""Redis: SET and GET, batches as a pipeline and MGET; over TCP or its unix socket."""

from __future__ import annotations

import os

import redis

from contenders.ends import find_program, free_port
from contenders.servers import Server


class Redis:
    """A client; without persistence."""

    version = redis.__version__

    @classmethod
    def serve(cls, options):
        port, path = free_port(), os.path.join(options["folder"], f"redis-{os.getpid()}.sock")
        program = find_program("redis-server", options)
        command = [program, "--bind", "127.0.0.1", "--port", str(port), "--unixsocket", path]
        return Server([*command, "--save", "", "--appendonly", "no"], port, options), {
            "port": port,
            "path": path,
        }

    def __init__(self, options, facts, ends, is_producer):
        if options["is_unix"]:
            self.client = redis.Redis(unix_socket_path=facts["path"])
        else:
            self.client = redis.Redis(port=facts["port"])
        self.version = f"{self.client.info('server')['redis_version']}, client {redis.__version__}"

    def put(self, keys, views):
        if len(keys) == 1:
            self.client.set(keys[0], views[0])
            return
        pipeline = self.client.pipeline(transaction=False)
        for key, view in zip(keys, views, strict=True):
            pipeline.set(key, view)
        pipeline.execute()

    def get(self, keys, views):
        found = [self.client.get(keys[0])] if len(keys) == 1 else self.client.mget(keys)
        for view, block in zip(views, found, strict=True):
            view[:] = block

    def remove(self, keys):
        self.client.delete(*keys)

    def close(self):
        self.client.close()
