"""LMCache's server and connector for vLLM, as `benchmarks/vllm_kv.py` runs them on a CPU.

Of its two connectors only `LMCacheMPConnector`, which has a server of its own, can do without a
GPU; the server must allow transfers that the engine drives (`--supported-transfer-mode auto`), or
it refuses what engines on a CPU want. `scripts/engines --lmcache` installs it in a folder of its
own, which is put before vLLM's packages: as a whole it wants others than vLLM does (numpy,
opentelemetry), and its metrics do not start with those (`--disable-observability`).
"""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import engine
import models

FOLDER = models.ROOT / ".cache" / "engines" / "lmcache"
ENV = {"PYTHONPATH": str(FOLDER), "LMCACHE_TRACK_USAGE": "false", "PYTHONHASHSEED": "0"}
BLOCK = 128
"""Tokens of a block of the engine."""


@contextmanager
def server(folder: Path) -> Iterator[int]:
    """LMCache's server; the port on which it answers."""
    port = engine.free_port()
    command = [str(engine.PYTHON), "-P", "-m", "lmcache.cli.main", "server"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--http-port", str(engine.free_port())]
    command += ["--l1-size-gb", "2", "--eviction-policy", "LRU", "--disable-observability"]
    command += ["--supported-transfer-mode", "auto", "--chunk-size", str(BLOCK)]
    with (folder / "lmcache.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            env={**engine.clean_environment(), **ENV},
            stdout=log,
            stderr=log,
            cwd=folder,
        )
    try:
        wait_for_port(port, process)
        yield port
    finally:
        process.terminate()
        process.wait(20)


def wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + engine.READY_S_MAX
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            assert process.poll() is None, "LMCache's server has ended: see lmcache.log"
            assert time.monotonic() < deadline, "LMCache's server does not answer"
            time.sleep(0.2)


def connector(port: int) -> tuple[str, ...]:
    """The flags that turn LMCache's connector on."""
    config = {
        "kv_connector": "LMCacheMPConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "lmcache.mp.host": "tcp://127.0.0.1",
            "lmcache.mp.port": port,
        },
    }
    return ("--kv-transfer-config", json.dumps(config))
