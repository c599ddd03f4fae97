import msgspec
import pytest

from tensorcast.deploy import keys
from tensorcast.deploy.home import Layout
from tensorcast.deploy.nats_server import render_config
from tensorcast.deploy.options import ClusterConfig, EmbeddedNats, External, NodeConfig
from tensorcast.schema.errors import Conflict, InvalidArgument, NotFound
from tensorcast.schema.nkeys import parse_credentials


@pytest.fixture
def layout(tmp_path):
    found = Layout(tmp_path)
    found.keys.mkdir()
    return found


@pytest.fixture
def config():
    nats = EmbeddedNats(port=4222, monitor_port=8222, user="tensorcast", password="secret")
    nodes = (NodeConfig(name="n1", dram_bytes=1), NodeConfig(name="n2", dram_bytes=1))
    external = External(url="postgresql://h/d")
    return ClusterConfig(
        cluster="c", context="c", nats=nats, postgres=external, nodes=nodes, sockets="/run"
    )


def test_each_process_and_the_user_get_a_key_that_only_they_can_read(layout, config):
    made = keys.complete_keys(layout, config)
    me = f"user.{keys.own_name()}"
    assert [one.id for one in made.nats.identities] == ["controlplane", "mover.n1", "mover.n2", me]
    for one in made.nats.identities:
        assert layout.key(one.id).stat().st_mode & 0o777 == 0o600
        assert parse_credentials(layout.key(one.id).read_text()).public == one.public
    assert keys.access_of(layout, made).user == keys.own_name()


def test_keys_are_made_once_and_a_new_node_gets_one(layout, config):
    made = keys.complete_keys(layout, config)
    assert keys.complete_keys(layout, made) == made
    grown = msgspec.structs.replace(made, nodes=(*made.nodes, NodeConfig(name="n3", dram_bytes=1)))
    again = keys.complete_keys(layout, grown)
    assert set(again.nats.identities) > set(made.nats.identities)
    assert [one.id for one in again.nats.identities][-1] == "mover.n3"


def test_a_lost_key_is_made_anew_and_a_broken_rotation_is_put_right(layout, config):
    made = keys.complete_keys(layout, config)
    layout.key("controlplane").unlink()
    halfway = keys.replace_identities(
        made,
        tuple(msgspec.structs.replace(one, former=one.public) for one in made.nats.identities),
    )
    again = keys.complete_keys(layout, halfway)
    assert again.nats.identities[0].public != made.nats.identities[0].public
    assert not any(one.former for one in again.nats.identities)


def test_the_configuration_of_the_server_has_no_secret_key(layout, config):
    made = keys.complete_keys(layout, config)
    text = render_config(made.nats, cluster="c", store=layout.nats)
    for one in made.nats.identities:
        assert one.public in text
        assert layout.key(one.id).read_text().strip() not in text
    assert layout.key("controlplane").read_text().strip() not in msgspec.json.encode(made).decode()


def test_users_come_and_go_but_not_the_last_one(layout, config):
    made = keys.add_user(layout, keys.complete_keys(layout, config), "bob", is_reader=True)
    with pytest.raises(Conflict):
        keys.add_user(layout, made, "bob", is_reader=False)
    with pytest.raises(InvalidArgument):
        keys.add_user(layout, made, "a.b", is_reader=False)
    assert [one.id for one in keys.choose(made, "reader")] == ["user.bob"]
    with pytest.raises(Conflict):
        keys.remove_user(made, keys.own_name())
    left = keys.remove_user(made, "bob")
    with pytest.raises(NotFound):
        keys.remove_user(left, "bob")
    with pytest.raises(NotFound):
        keys.choose(left, "user.bob")


def test_a_server_of_ones_own_has_its_own_keys(layout, config):
    external = msgspec.structs.replace(config, nats=External(url="nats://h"))
    assert keys.complete_keys(layout, external) == external
    with pytest.raises(InvalidArgument, match="of your own"):
        keys.identities_of(external)
