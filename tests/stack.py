"""Real movers and a real control plane for the tests of the client: processes on loopback that can
be killed and started again. Without a supervisor, so a killed mover loses its memory.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from servers import NatsServer
from tensorcast.client import Client, Context, NodeContext, TensorCastError, connect

START_S_MAX = 30.0


class Stack:
    """Movers by name, and a control plane if there is a database."""

    def __init__(self, folder: Path, nats: NatsServer, database: str | None) -> None:
        self.folder = folder
        self.nats = nats
        self.database = database
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def context(self, node: str = "n1") -> Context:
        nodes = {
            name: NodeContext(socket=str(self.socket(name)))
            for name in ("n1", "n2", "n3", "n4")
            if name == node or name in self.processes
        }
        return Context(cluster="test", nats_url=self.nats.url, nodes=nodes, default_node=node)

    def connect(self, node: str = "n1") -> Client:
        return connect(self.context(node))

    def socket(self, node: str) -> Path:
        return self.folder / f"{node}.sock"

    def start_mover(self, node: str, *, dram_bytes: int = 256 << 20, **environ: str) -> None:
        self._start(
            node,
            "tensorcast.movers.main",
            TENSORCAST_NODE=node,
            TENSORCAST_DATA_DIR=str(self.folder / node),
            TENSORCAST_SOCKET=str(self.socket(node)),
            TENSORCAST_DATA_LISTEN="127.0.0.1:0",
            TENSORCAST_DRAM_BYTES=str(dram_bytes),
            **environ,
        )
        with self.connect(node) as client:
            self._wait(node, client.stats)

    def start_controlplane(self) -> None:
        assert self.database is not None
        self._start("controlplane", "tensorcast.controlplane.main")
        with self.connect() as client:
            self._wait("controlplane", client.api.status)

    def kill(self, name: str) -> None:
        """As a crash."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def stop(self) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes.clear()

    def log_text(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()[-4000:]

    def _start(self, name: str, module: str, **extra: str) -> None:
        environ = {
            **os.environ,
            "TENSORCAST_CLUSTER": "test",
            "TENSORCAST_NATS_URL": self.nats.url,
            "TENSORCAST_POSTGRES_URL": self.database or "",
            "TENSORCAST_HEARTBEAT_S": "0.5",
            "TENSORCAST_NODE_TIMEOUT_S": "3",
            **extra,
        }
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", module], env=environ, stdout=log, stderr=log
            )

    def _wait(self, name: str, is_there: Callable[[], object]) -> None:
        deadline = time.monotonic() + START_S_MAX
        while True:
            try:
                is_there()
                return
            except TensorCastError as error:
                if time.monotonic() > deadline or self.processes[name].poll() is not None:
                    raise AssertionError(f"{name}: {error}\n{self.log_text(name)}") from error
            time.sleep(0.05)


@contextmanager
def running_stack(database: str | None) -> Iterator[Stack]:
    """A folder of its own (short, for the sockets) and a NATS server; all is taken away after."""
    folder = Path(tempfile.mkdtemp(prefix="tc-test-"))
    (folder / "nats").mkdir()
    nats = NatsServer(folder / "nats")
    nats.start()
    stack = Stack(folder, nats, database)
    try:
        yield stack
    finally:
        stack.stop()
        nats.stop()
        shutil.rmtree(folder)
