"""An embedded cluster for tests: real servers, stand-ins for our own processes.

The stand-ins speak the notify protocol and keep descriptors with the supervisor, nothing more.
The fixtures are imported by the tests that use them.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

import asyncpg
import nats
import psutil
import pytest

from tensorcast.deploy import cluster
from tensorcast.deploy.home import Layout, load_config
from tensorcast.deploy.options import ClusterConfig, UpOptions

STAND_IN = """
import json, os, signal, socket, sys, time

def notify(text, fds=()):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.connect(os.environ["NOTIFY_SOCKET"])
        socket.send_fds(channel, [text.encode()], fds)

def leave(*_):
    for part in (1, 2):
        notify(f"STATUS=hibernated {part} of 2")
        time.sleep(0.05)
    sys.exit(0)

signal.signal(signal.SIGTERM, leave)
node = os.environ.get("TENSORCAST_NODE")
if node:
    ours = os.environ.get("LISTEN_PID") == str(os.getpid())
    names = os.environ["LISTEN_FDNAMES"].split(":") if ours else []
    assert len(names) == int(os.environ.get("LISTEN_FDS", 0))
    kept = {name: os.pread(place, 99, 0).decode() for place, name in enumerate(names, 3)}
    with open(os.environ["TENSORCAST_DATA_DIR"] + "/kept.json", "w") as file:
        json.dump(kept, file)
    for part in range(3 if not names else 0):
        memory = os.memfd_create("segment")
        os.write(memory, f"{node} part {part}".encode())
        notify(f"FDSTORE=1\\nFDNAME=part{part}", [memory])
    notify("FDSTOREREMOVE=1\\nFDNAME=part1")
notify("READY=1\\nSTATUS=serving")
while True:
    signal.pause()
"""


class Home:
    """One cluster in a folder of its own."""

    def __init__(self, folder: Path, stand_in: Path) -> None:
        self.home = folder / "home"
        self.layout = Layout(self.home)
        self.command = (sys.executable, str(stand_in))
        self.said: list[str] = []

    def up(self, **options) -> cluster.Status:
        self.said.clear()
        asked = {"controlplane_command": self.command, "mover_command": self.command, **options}
        return cluster.up(UpOptions(home=self.home, **asked), self.said.append)

    def down(self, *, purge: bool = False) -> None:
        self.said.clear()
        cluster.down(self.home, purge=purge, progress=self.said.append)

    @property
    def config(self) -> ClusterConfig:
        config = load_config(self.layout)
        assert config is not None
        return config

    def service(self, name: str):
        services = {service.name: service for service in cluster.status(self.home).services}
        return services.get(name)

    def kept(self, node: str) -> dict[str, str]:
        return json.loads((self.layout.nodes / node / "kept.json").read_text())

    def wait_restarted(self, name: str, *, old_pid: int, timeout_s: float = 30) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            service = self.service(name)
            if service and service.state == "up" and service.pid != old_pid:
                return
            time.sleep(0.02)
        raise AssertionError(f"{name} did not come back: {self.service(name)}")


@pytest.fixture
def outside():
    """A folder that root's Postgres can reach; pytest's own folders are private."""
    folder = Path(tempfile.mkdtemp(prefix="tensorcast-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def home(tmp_path, outside, monkeypatch):
    monkeypatch.setenv("TENSORCAST_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("TENSORCAST_POSTGRES_DIR", str(outside))
    stand_in = tmp_path / "stand_in.py"
    stand_in.write_text(STAND_IN)
    one = Home(tmp_path, stand_in)
    yield one
    supervisor = one.service("supervisor")
    cluster.down(one.home, purge=one.layout.config.exists())
    assert supervisor is None or supervisor.pid is None or not is_running(supervisor.pid)


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def write_something(config: ClusterConfig) -> None:
    client = await nats.connect(config.nats.url)
    log = client.jetstream()
    await log.add_stream(name="TEST", subjects=["test.>"])
    await log.publish("test.a", b"kept")
    await client.close()
    database = await asyncpg.connect(config.postgres.url)
    await database.execute("CREATE TABLE kept (word text); INSERT INTO kept VALUES ('kept')")
    await database.close()


async def read_something(config: ClusterConfig) -> tuple[bytes, str]:
    client = await nats.connect(config.nats.url)
    message = await client.jetstream().get_msg("TEST", 1)
    await client.close()
    database = await asyncpg.connect(config.postgres.url)
    word = await database.fetchval("SELECT word FROM kept")
    await database.close()
    assert message.data is not None
    return message.data, word
