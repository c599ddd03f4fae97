"""Three nats-servers that keep everything together, with the configuration of `deploy`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from servers import NatsServer, Server
from tensorcast.deploy.nats_cluster import NatsCluster, Peer, render_peer
from tensorcast.deploy.options import LOOPBACK
from tensorcast.deploy.ports import choose_port
from tensorcast.deploy.spawn import Launch


class NatsClusterServer(Server):
    """One server of a cluster; made by `NatsTrio`."""

    def __init__(self, folder: Path, cluster: NatsCluster, number: int) -> None:
        super().__init__(folder)
        self.port = cluster.peers[number - 1].port
        (folder / "nats.conf").write_text(render_peer(cluster, number))

    def launch(self) -> Launch:
        return NatsServer.launch(self)


class NatsTrio:
    """Three nats-servers that keep everything together, with the configuration of `deploy`."""

    def __init__(self, folder: Path) -> None:
        ports: list[int] = []
        while len(ports) < 9:
            ports.append(choose_port(taken=ports))
        peers = []
        for number in (1, 2, 3):
            home = folder / f"nats-{number}"
            home.mkdir()
            peers.append(
                Peer(
                    name=f"nats-{number}",
                    host=LOOPBACK,
                    listen=LOOPBACK,
                    port=ports.pop(),
                    route_port=ports.pop(),
                    monitor_port=ports.pop(),
                    store=str(home / "jetstream"),
                )
            )
        cluster = NatsCluster(
            name="test",
            peers=tuple(peers),
            user="tensorcast",
            password="secret",
            route_password="route-secret",
        )
        self.url = cluster.url
        self.servers = [
            NatsClusterServer(folder / f"nats-{number}", cluster, number) for number in (1, 2, 3)
        ]

    def start(self) -> None:
        for server in self.servers:
            server.start()

    def stop(self) -> None:
        for server in self.servers:
            server.stop()


@pytest.fixture
def nats_trio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NatsTrio]:
    """Three nats-servers of this test's own, and logs on all of them."""
    monkeypatch.setenv("TENSORCAST_LOG_REPLICAS", "3")
    trio = NatsTrio(tmp_path)
    trio.start()
    yield trio
    trio.stop()
