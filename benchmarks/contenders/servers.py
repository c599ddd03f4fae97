"""Servers of peers: started with a log, awaited, and ended. Standard library only."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time

START_S_MAX = 60.0
END_S_MAX = 10.0


class Server:
    """A process that listens on a port of the loopback interface."""

    def __init__(self, command, port: int, options, environ=None) -> None:
        name = os.path.basename(command[0])
        with open(os.path.join(str(options["folder"]), f"server-{name}.log"), "ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environ, cwd=str(options["folder"])
            )
        deadline = time.monotonic() + START_S_MAX
        while not is_listening(port):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise RuntimeError(f"{name} does not listen (it ended: {self.process.poll()})")
            time.sleep(0.05)

    def close(self) -> None:
        """Ends it. Safe to repeat."""
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        try:
            self.process.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def is_listening(port: int) -> bool:
    """Whether somebody accepts connections there."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def read_exactly(connected: socket.socket, size: int) -> bytes:
    """So many bytes. Raises EOFError."""
    found = bytearray(size)
    read_into(connected, memoryview(found))
    return bytes(found)


def read_into(connected: socket.socket, target: memoryview) -> None:
    """Fills the target. Raises EOFError."""
    at = 0
    while at < len(target):
        got = connected.recv_into(target[at:])
        if not got:
            raise EOFError("the server closed the connection")
        at += got
