"""What `up` accepts, and how a cluster grows."""

from pathlib import Path

import pytest

from tensorcast.deploy.options import (
    EmbeddedNats,
    External,
    NodeConfig,
    UpOptions,
    check_options,
    grow_nodes,
    hide_password,
    merge_server,
)
from tensorcast.schema.errors import InvalidArgument

HOME = Path("/nowhere")
NATS = EmbeddedNats(port=1, monitor_port=2, user="u", password="p")


@pytest.mark.parametrize(
    "wrong",
    [
        {"nodes": -1},
        {"nodes": 65},
        {"dram_bytes": 1024},
        {"cluster": "Not A Name"},
        {"cluster": "a" * 33},
        {"context": "../../etc/passwd"},
        {"nats_url": "http://example"},
        {"postgres_url": "mysql://example/db"},
    ],
)
def test_options_that_make_no_sense_are_refused(wrong):
    with pytest.raises(InvalidArgument):
        check_options(UpOptions(home=HOME, **wrong))


def test_good_options_are_accepted():
    check_options(
        UpOptions(
            home=HOME,
            nodes=3,
            dram_bytes=1 << 30,
            cluster="prod-1",
            nats_url="nats://u:p@host:4222",
            postgres_url="postgresql://u:p@/db?host=/run/postgresql",
        )
    )


def test_a_refused_url_does_not_show_its_password():
    with pytest.raises(InvalidArgument) as caught:
        check_options(UpOptions(home=HOME, nats_url="http://u:hush@host"))
    assert "hush" not in str(caught.value)


def test_growing_keeps_the_nodes_that_are_there():
    one = grow_nodes((), count=1, dram_bytes=5)
    three = grow_nodes(one, count=3, dram_bytes=7)
    assert [(node.name, node.dram_bytes) for node in three] == [("n1", 5), ("n2", 7), ("n3", 7)]


def test_asking_for_fewer_nodes_takes_none_away():
    three = grow_nodes((), count=3, dram_bytes=5)
    assert grow_nodes(three, count=1, dram_bytes=5) == three


def test_growing_fills_gaps_without_using_a_name_twice():
    odd = (NodeConfig(name="n2", dram_bytes=1),)
    assert [node.name for node in grow_nodes(odd, count=3, dram_bytes=1)] == ["n2", "n1", "n3"]


def test_an_external_server_may_change_its_url():
    assert merge_server("NATS", External(url="nats://a"), "nats://b") == External(url="nats://b")
    assert merge_server("NATS", NATS, None) is None


def test_embedded_data_is_not_left_behind_for_an_external_server():
    with pytest.raises(InvalidArgument):
        merge_server("NATS", NATS, "nats://b")


def test_a_shown_url_has_no_credentials():
    assert hide_password("postgresql://u:p@h:5/db?password=x") == "postgresql://h:5/db"
