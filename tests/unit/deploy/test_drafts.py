"""What a request does to a cluster that is there."""

from pathlib import Path

import msgspec
import pytest

from tensorcast.deploy.drafts import merge
from tensorcast.deploy.options import (
    ClusterConfig,
    EmbeddedNats,
    External,
    NodeConfig,
    UpOptions,
)
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.ids import Overflow

HOME = Path("/nowhere")
KNOWN = ClusterConfig(
    cluster="demo",
    context="demo",
    nats=EmbeddedNats(port=1, monitor_port=2, user="u", password="p"),
    postgres=External(url="postgresql://old/db"),
    nodes=(NodeConfig(name="n1", dram_bytes=7 << 20),),
    sockets="/run/tc",
)


def test_options_that_are_left_open_change_nothing():
    assert merge(KNOWN, UpOptions(home=HOME)) == KNOWN


def test_what_is_asked_for_changes_and_nothing_else():
    options = UpOptions(home=HOME, nodes=2, postgres_url="postgresql://new/db", context="c")
    merged = merge(KNOWN, options)
    assert merged.nodes == (*KNOWN.nodes, NodeConfig(name="n2", dram_bytes=7 << 20))
    assert merged.postgres == External(url="postgresql://new/db")
    back = msgspec.structs.replace(
        merged, nodes=KNOWN.nodes, postgres=KNOWN.postgres, context="demo"
    )
    assert back == KNOWN


def test_the_disk_of_kv_blocks_is_set_for_all_nodes_and_stays():
    merged = merge(KNOWN, UpOptions(home=HOME, nodes=2, kv_disk_bytes=1 << 30))
    assert [node.kv_disk_bytes for node in merged.nodes] == [1 << 30, 1 << 30]
    grown = merge(merged, UpOptions(home=HOME, nodes=3))
    assert [node.kv_disk_bytes for node in grown.nodes] == [1 << 30] * 3
    assert merge(KNOWN, UpOptions(home=HOME, nodes=1)).nodes[0].kv_disk_bytes == 0


def test_dram_is_set_for_all_nodes():
    merged = merge(KNOWN, UpOptions(home=HOME, nodes=2, dram_bytes=1 << 30))
    assert [node.dram_bytes for node in merged.nodes] == [1 << 30, 1 << 30]


def test_the_disk_and_what_happens_to_a_full_memory_are_set_for_all_nodes():
    options = UpOptions(home=HOME, nodes=2, disk_bytes=5 << 30, overflow=Overflow.EVICT)
    merged = merge(KNOWN, options)
    assert [(node.disk_bytes, node.overflow) for node in merged.nodes] == [(5 << 30, "evict")] * 2
    assert merge(merged, UpOptions(home=HOME)) == merged


def test_more_memory_than_the_machine_has_is_refused():
    with pytest.raises(InvalidArgument, match="more than this machine has"):
        merge(KNOWN, UpOptions(home=HOME, nodes=2, dram_bytes=1 << 50))


@pytest.mark.parametrize("wrong", [{"cluster": "other"}, {"nats_url": "nats://elsewhere"}])
def test_contradictions_are_refused(wrong):
    with pytest.raises(InvalidArgument):
        merge(KNOWN, UpOptions(home=HOME, **wrong))
