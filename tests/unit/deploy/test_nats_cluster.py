from __future__ import annotations

import stat

import msgspec
import pytest

from tensorcast.deploy.nats_cluster import NatsCluster, Peer, main, render_peer, write_peers
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.servers import split_servers

CLUSTER = NatsCluster(
    name="tensorcast",
    peers=tuple(Peer(name=f"nats-{n}", host=f"h{n}") for n in (1, 2, 3)),
    user="tensorcast",
    password="p",
    route_password="r",
)


def test_each_server_knows_the_others_and_syncs_before_it_acknowledges():
    text = render_peer(CLUSTER, 2)
    assert 'server_name: "nats-2"' in text
    assert "nats://route:r@h1:6222" in text
    assert "nats://route:r@h3:6222" in text
    assert "@h2:" not in text
    assert "sync_interval: always" in text
    assert "max_payload: 8MB" in text


def test_clients_get_all_of_them():
    assert split_servers(CLUSTER.url) == tuple(f"nats://tensorcast:p@h{n}:4222" for n in (1, 2, 3))


@pytest.mark.parametrize(
    ("peers", "complaint"),
    [
        (CLUSTER.peers[:2], "2 servers"),
        ((*CLUSTER.peers[:2], CLUSTER.peers[0]), "one name"),
    ],
)
def test_what_makes_no_majority_is_refused(tmp_path, peers, complaint):
    with pytest.raises(InvalidArgument, match=complaint):
        write_peers(msgspec.structs.replace(CLUSTER, peers=peers), tmp_path)


def test_the_command_writes_private_files_and_says_what_to_set(tmp_path, capsys):
    folder = tmp_path / "nats"
    assert main(["a.example", "b.example", "c.example", "--folder", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "TENSORCAST_LOG_REPLICAS=3" in said
    assert "@a.example:4222,b.example:4222,c.example:4222" in said
    for number in (1, 2, 3):
        assert stat.S_IMODE((folder / f"nats-{number}.conf").stat().st_mode) == 0o600
    assert main(["a.example", "--folder", str(folder)]) == 2
