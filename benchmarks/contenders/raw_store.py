"""The bare loops that block stores are measured against: a dict of places, blocks in one memfd of
the producer, and a server thread that answers places (shared memory) or `sendfile`s (TCP)."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading

from contenders.ends import free_port
from contenders.raw_tcp import fill_views
from contenders.servers import read_exactly
from harness.memory import create_memory, map_memory

HEAD = struct.Struct("I")


class RawStore:
    """What both have in common: the producer's memory and its index."""

    version = ""
    is_tcp = False

    @classmethod
    def serve(cls, options):
        return None, {"port": free_port(), "path": os.path.join(options["folder"], "raw.sock")}

    def __init__(self, options, facts, ends, is_producer):
        self.facts = facts
        self.size = max(about["size"] for about in ends.works.values())
        self.places = {}
        if is_producer:
            self.fd = create_memory(self.size)
            self.memory = map_memory(self.fd, self.size)
            listening = self.listen()
            threading.Thread(target=self.answer, args=(listening,), daemon=True).start()
        else:
            self.connect()

    def listen(self):
        if self.is_tcp:
            return socket.create_server(("127.0.0.1", self.facts["port"]))
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(self.facts["path"])
        listening.listen()
        return listening

    def put(self, keys, views):
        for key, view in zip(keys, views, strict=True):
            at = int(key[-5:]) * len(view)
            self.memory[at : at + len(view)] = view
            self.places[key] = (at, len(view))

    def remove(self, keys):
        for key in keys:
            self.places.pop(key, None)

    def answer(self, listening):
        connected, _ = listening.accept()
        self.welcome(connected)
        with contextlib.suppress(EOFError, OSError):
            while True:
                (size,) = HEAD.unpack(read_exactly(connected, HEAD.size))
                keys = read_exactly(connected, size).decode().split("\n")
                self.reply(connected, [self.places[key] for key in keys])

    def ask(self, keys):
        text = "\n".join(keys).encode()
        self.connected.sendall(HEAD.pack(len(text)) + text)

    def close(self):
        pass


class RawMemory(RawStore):
    """On one node: places are answered, the reader has mapped the memory."""

    def welcome(self, connected):
        socket.send_fds(connected, [b"x"], [self.fd])

    def connect(self):
        self.connected = socket.socket(socket.AF_UNIX)
        self.connected.connect(self.facts["path"])
        _, (fd,), _, _ = socket.recv_fds(self.connected, 1, 1)
        self.memory = map_memory(fd, self.size)

    def reply(self, connected, places):
        connected.sendall(struct.pack(f"{2 * len(places)}Q", *[n for p in places for n in p]))

    def view(self, keys):
        self.ask(keys)
        numbers = struct.unpack(f"{2 * len(keys)}Q", read_exactly(self.connected, 16 * len(keys)))
        pairs = zip(numbers[::2], numbers[1::2], strict=True)
        return [self.memory[at : at + size] for at, size in pairs]

    def get(self, keys, views):
        for view, found in zip(views, self.view(keys), strict=True):
            view[:] = found


class RawTcp(RawStore):
    """Between nodes: the blocks of a batch follow each other on one connection."""

    is_tcp = True

    def welcome(self, connected):
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connect(self):
        self.connected = socket.create_connection(("127.0.0.1", self.facts["port"]))
        self.welcome(self.connected)

    def reply(self, connected, places):
        for at, size in places:
            end = at + size
            while at < end:
                at += os.sendfile(connected.fileno(), self.fd, at, end - at)

    def get(self, keys, views):
        self.ask(keys)
        fill_views(self.connected, list(views))
