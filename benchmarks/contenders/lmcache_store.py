"""LMCache's server, through its own wire protocol (the one of its `lm://` connector): one block for
each request. A put has no answer; an EXIST of the last key of a batch makes it one."""

from __future__ import annotations

import hashlib
import os
import socket
import sys
from importlib.metadata import version

import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1 import protocol
from lmcache.v1.memory_management import MemoryFormat

from contenders.ends import free_port
from contenders.servers import Server, read_exactly, read_into

FOUND = 200
FORMAT = MemoryFormat.KV_2LTD


class LmCache:
    """A client of the server."""

    version = version("lmcache")

    @classmethod
    def serve(cls, options):
        port = free_port()
        command = [sys.executable, "-m", "lmcache.v1.server", "127.0.0.1", str(port), "cpu"]
        return Server(command, port, options, dict(os.environ)), {"port": port}

    def __init__(self, options, facts, ends, is_producer):
        self.connected = socket.create_connection(("127.0.0.1", facts["port"]))

    def key(self, text):
        """The same in every turn: it cannot remove blocks, but writes over those that it has."""
        space, _, place = text.split("-")
        text = f"{space}-{place}"
        number = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "little")
        return CacheEngineKey("m", 1, 0, number, torch.uint8)

    def send(self, command, key, size, shape):
        message = protocol.ClientMetaMessage(
            command, self.key(key), size, FORMAT, torch.uint8, torch.Size(shape)
        )
        self.connected.sendall(message.serialize())

    def receive(self):
        head = read_exactly(self.connected, protocol.ServerMetaMessage.packlength())
        answer = protocol.ServerMetaMessage.deserialize(head)
        if answer.code != FOUND:
            raise RuntimeError(f"the server answered {answer.code}")
        return answer

    def put(self, keys, views):
        for key, view in zip(keys, views, strict=True):
            size = len(view)
            self.send(protocol.ClientCommand.PUT, key, size, [size, 1, 1, 1])
            self.connected.sendall(view)
        self.send(protocol.ClientCommand.EXIST, keys[-1], 0, [0, 0, 0, 0])
        self.receive()

    def get(self, keys, views):
        for key, view in zip(keys, views, strict=True):
            self.send(protocol.ClientCommand.GET, key, 0, [0, 0, 0, 0])
            if self.receive().length != len(view):
                raise RuntimeError("a block has another size")
            read_into(self.connected, view)

    def remove(self, keys):
        pass  # it cannot; see `key`

    def close(self):
        self.connected.close()
