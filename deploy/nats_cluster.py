"""The configuration of a NATS cluster of three or five servers: `python -m
tensorcast.deploy.nats_cluster HOST HOST HOST --folder DIR` writes a file for each.

JetStream keeps the log on all of them and acknowledges an event when most have it on disk, so any
one of three (two of five) may go at any moment, and nothing is lost.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from tensorcast.deploy.home import make_folder, write_private
from tensorcast.deploy.nats_server import MAX_PAYLOAD
from tensorcast.schema.errors import InvalidArgument

SIZES: Final = (3, 5)
CLIENT_PORT: Final = 4222
ROUTE_PORT: Final = 6222
MONITOR_PORT: Final = 8222

_TEMPLATE = """\
# Server {number} of {count} of a NATS cluster for TensorCast. nats-server 2.15.0 or newer.
server_name: "{name}"
listen: "{listen}:{port}"
http: "127.0.0.1:{monitor_port}"
max_payload: {max_payload}
# A process that was stopped, or whose machine is gone, must not be asked for long.
ping_interval: "3s"
ping_max: 2
authorization {{ user: "{user}", password: "{password}" }}

jetstream {{
  store_dir: "{store}"
  # An acknowledged event has to survive a power cut of all servers.
  sync_interval: always
}}

cluster {{
  name: "{cluster}"
  listen: "{listen}:{route_port}"
  authorization {{ user: "route", password: "{route_password}" }}
  routes: [
{routes}
  ]
}}
"""


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """One server: `host` is what clients and the other servers call it, `listen` the address that
    it listens on, `store` its folder."""

    name: str
    host: str
    listen: str = "0.0.0.0"
    port: int = CLIENT_PORT
    route_port: int = ROUTE_PORT
    monitor_port: int = MONITOR_PORT
    store: str = "/var/lib/nats"


class NatsCluster(msgspec.Struct, frozen=True, kw_only=True):
    """All servers, and the passwords that clients and servers give."""

    name: str
    peers: tuple[Peer, ...]
    user: str
    password: str
    route_password: str

    @property
    def url(self) -> str:
        """What clients are given: any one of the servers will do."""
        hosts = ",".join(f"{peer.host}:{peer.port}" for peer in self.peers)
        return f"nats://{self.user}:{self.password}@{hosts}"


def check_cluster(cluster: NatsCluster) -> None:
    """Raises InvalidArgument for a number of servers that makes no majority, and for names or
    hosts that cannot be told apart."""
    if len(cluster.peers) not in SIZES:
        raise InvalidArgument(
            f"A NATS cluster of {len(cluster.peers)} servers is not safer than a smaller one.",
            hint="Name three hosts, or five.",
        )
    places = {(peer.host, peer.port) for peer in cluster.peers}
    if len(places) < len(cluster.peers) or len({peer.name for peer in cluster.peers}) < len(places):
        raise InvalidArgument(
            "Two servers of the cluster have one name.", hint="Name each host once."
        )


def render_peer(cluster: NatsCluster, number: int) -> str:
    """The configuration file of server `number` (from 1). It holds passwords."""
    peer = cluster.peers[number - 1]
    routes = [
        f'    "nats://route:{cluster.route_password}@{other.host}:{other.route_port}"'
        for other in cluster.peers
        if other is not peer
    ]
    return _TEMPLATE.format(
        number=number,
        count=len(cluster.peers),
        name=peer.name,
        listen=peer.listen,
        port=peer.port,
        monitor_port=peer.monitor_port,
        max_payload=MAX_PAYLOAD,
        user=cluster.user,
        password=cluster.password,
        store=peer.store,
        cluster=cluster.name,
        route_port=peer.route_port,
        route_password=cluster.route_password,
        routes="\n".join(routes),
    )


def write_peers(cluster: NatsCluster, folder: Path) -> tuple[Path, ...]:
    """Writes `<name>.conf` for each server (mode 0600)."""
    check_cluster(cluster)
    make_folder(folder, 0o700)
    paths = []
    for number, peer in enumerate(cluster.peers, 1):
        paths.append(folder / f"{peer.name}.conf")
        write_private(paths[-1], render_peer(cluster, number).encode())
    return tuple(paths)


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the files and says what to do with them."""
    parser = argparse.ArgumentParser(prog="tensorcast.deploy.nats_cluster", description=__doc__)
    parser.add_argument("hosts", nargs="+", help="host names of the servers")
    parser.add_argument("--folder", type=Path, default=Path("nats"), help="where to write")
    parser.add_argument("--store", default="/var/lib/nats", help="where each keeps its data")
    chosen = parser.parse_args(arguments)
    cluster = NatsCluster(
        name="tensorcast",
        peers=tuple(
            Peer(name=f"nats-{number}", host=host, store=chosen.store)
            for number, host in enumerate(chosen.hosts, 1)
        ),
        user="tensorcast",
        password=secrets.token_urlsafe(24),
        route_password=secrets.token_urlsafe(24),
    )
    try:
        paths = write_peers(cluster, chosen.folder)
    except InvalidArgument as error:
        print(error, file=sys.stderr)
        return 2
    for path, host in zip(paths, chosen.hosts, strict=True):
        print(f"{host}: nats-server -c {path.name}")
    print(f"TENSORCAST_NATS_URL={cluster.url}")
    print(f"TENSORCAST_LOG_REPLICAS={len(paths)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
