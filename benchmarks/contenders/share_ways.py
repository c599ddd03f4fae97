"""Ways to share a state dict that need no server: a memfd that is passed (the bare loop), torch's
shared memory, and a safetensors file on /dev/shm."""

from __future__ import annotations

import json
import os
import socket
import struct

import torch
from safetensors.torch import load_file, save_file

from contenders.servers import read_exactly
from contenders.shares import Way
from harness.memory import map_memory

FDS_MAX = 200
LENGTH = struct.Struct("I")


class Passing(Way):
    """An owner and a reader that are connected by a unix socket."""

    is_asked = True

    def __init__(self, options, facts, ends, is_owner):
        self.there = None
        if is_owner:
            self.listening = socket.socket(socket.AF_UNIX)
            self.listening.bind(facts["path"])
            self.listening.listen()
            self.connected = None
        else:
            self.connected = socket.socket(socket.AF_UNIX)
            self.connected.connect(facts["path"])

    def serve_one(self, work):
        if self.connected is None:
            self.connected, _ = self.listening.accept()
        self.send(*self.there)

    def send(self, about, fds):
        text = json.dumps(about).encode()
        socket.send_fds(self.connected, [LENGTH.pack(len(text))], fds[:FDS_MAX])
        self.connected.sendall(text)
        for first in range(FDS_MAX, len(fds), FDS_MAX):
            socket.send_fds(self.connected, [b"x"], fds[first : first + FDS_MAX])

    def receive(self, count):
        """What was sent; `count` descriptors of it, if there are so many."""
        head, fds, _, _ = socket.recv_fds(self.connected, LENGTH.size, FDS_MAX)
        about = json.loads(read_exactly(self.connected, LENGTH.unpack(head)[0]))
        fds = list(fds)
        while len(fds) < count(about):
            fds += socket.recv_fds(self.connected, 1, FDS_MAX)[1]
        return about, fds


class RawMemfd(Passing):
    """One pwrite for each tensor into a fresh memfd; the reader maps it."""

    def publish(self, work, tensors):
        fd = os.memfd_create("state")
        places, at = {}, 0
        for name, tensor in tensors.items():
            view = memoryview(tensor.numpy())
            places[name] = (at, len(view))
            written = 0
            while written < len(view):
                written += os.pwrite(fd, view[written:], at + written)
            at += len(view)
        self.there = ((places, at), [fd])

    def get(self, work):
        (places, size), (fd,) = self.receive(lambda about: 1)
        whole = torch.frombuffer(map_memory(fd, size, is_populated=False), dtype=torch.uint8)
        os.close(fd)
        return {name: whole[at : at + n] for name, (at, n) in places.items()}

    def withdraw(self, work):
        os.close(self.there[1][0])
        self.there = None


class RawPwrite(RawMemfd):
    """The same as the yardstick of a put: all bytes with as few calls as the kernel takes."""

    def prepare(self, work, tensors):
        return {"whole": torch.cat(list(tensors.values()))}


class TorchShared(Passing):
    """`tensor.share_memory_()`: a copy of each tensor in a segment of its own."""

    version = torch.__version__

    def publish(self, work, tensors):
        for tensor in tensors.values():
            tensor.share_memory_()
        self.tensors = tensors
        shared = [tensor.untyped_storage()._share_fd_cpu_() for tensor in tensors.values()]
        about = [(name, size) for name, (_, size) in zip(tensors, shared, strict=True)]
        self.there = (about, [fd for fd, _ in shared])

    def get(self, work):
        about, fds = self.receive(len)
        found = {}
        for (name, size), fd in zip(about, fds, strict=True):
            storage = torch.UntypedStorage._new_shared_fd_cpu(fd, size)
            found[name] = torch.empty(0, dtype=torch.uint8).set_(storage, 0, (size,))
            os.close(fd)
        return found

    def withdraw(self, work):
        self.tensors = None
        self.there = None


class Safetensors(Passing):
    """`save_file` to /dev/shm and `load_file`, which maps."""

    def __init__(self, options, facts, ends, is_owner):
        super().__init__(options, facts, ends, is_owner)
        self.path = f"/dev/shm/{os.path.basename(facts['path'])}.safetensors"
        self.is_owner = is_owner

    def publish(self, work, tensors):
        save_file(tensors, self.path)
        self.there = ([], [])

    def get(self, work):
        self.receive(lambda about: 0)
        return load_file(self.path)

    def withdraw(self, work):
        if os.path.exists(self.path):
            os.unlink(self.path)

    def close(self):
        if self.is_owner:
            self.withdraw("")
