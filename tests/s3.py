"""An S3-compatible server (moto's) in a process of its own, for tests."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

import obstore
from obstore.store import S3Store

START_S_MAX = 30.0
_PROGRAM = "from moto.server import main; main(['-H', '127.0.0.1', '-p', '{port}'])"


@dataclass
class S3Server:
    """A running server; `environ` are the settings with which everybody reaches it."""

    port: int
    process: subprocess.Popen[bytes]

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environ(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }

    def make_bucket(self, name: str) -> None:
        self.request("PUT", f"/{name}")

    def request(self, method: str, path: str, content: bytes | None = None) -> bytes:
        kind = {"Content-Type": "application/octet-stream"}  # a form would be read as one
        question = urllib.request.Request(
            self.endpoint + path, method=method, data=content, headers=kind
        )
        with urllib.request.urlopen(question, timeout=10) as answer:
            return bytes(answer.read())

    def upload(self, bucket: str, path: str, content: bytes) -> str:
        """Writes an object, over one that may be there; its URL."""
        store = S3Store(
            bucket,
            endpoint=self.endpoint,
            access_key_id="test",
            secret_access_key="test",
            client_options={"allow_http": True},
        )
        obstore.put(store, path, content)
        return f"s3://{bucket}/{path}"

    def refuse_strangers(self) -> None:
        """From now on only known access keys may do anything, and there are none."""
        self.request("POST", "/moto-api/reset-auth", b"0")

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def s3_server() -> Iterator[S3Server]:
    """A server on a free port, until the end of the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM.format(port=port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    server = S3Server(port, process)
    try:
        _wait(server)
        yield server
    finally:
        server.stop()


def _wait(server: S3Server) -> None:
    end = time.monotonic() + START_S_MAX
    while True:
        assert server.process.poll() is None, "the S3 server has ended"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", server.port), 1):
            return
        assert time.monotonic() < end, "the S3 server does not start"
        time.sleep(0.02)
