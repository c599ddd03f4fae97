"""The client context of a cluster."""

from pathlib import Path

from tensorcast.deploy.context import NodeContext, config_folder, describe
from tensorcast.deploy.options import ClusterConfig, External, NodeConfig
from tensorcast.schema.access import Access

CONFIG = ClusterConfig(
    cluster="demo",
    context="mine",
    nats=External(url="nats://u:p@h:1"),
    postgres=External(url="postgresql://h/db"),
    nodes=(NodeConfig(name="n1", dram_bytes=1), NodeConfig(name="n2", dram_bytes=1)),
    sockets="/run/tc",
)


def test_a_context_leads_to_every_node():
    context = describe(CONFIG, Path("/home/tc"), Access())
    assert context.nats_url == "nats://u:p@h:1"
    assert context.home == "/home/tc"
    assert context.nodes == {
        "n1": NodeContext(socket="/run/tc/n1.sock"),
        "n2": NodeContext(socket="/run/tc/n2.sock"),
    }
    assert context.default_node == "n1"


def test_where_contexts_lie():
    assert config_folder({"TENSORCAST_CONFIG_DIR": "/c"}) == Path("/c")
    assert config_folder({"XDG_CONFIG_HOME": "/x"}) == Path("/x/tensorcast")
