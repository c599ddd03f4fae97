"""What a request does to a cluster that is there, and who is to blame when one does not start."""

from pathlib import Path

import msgspec
import pytest

from tensorcast.deploy.cluster import explain_unready, is_hopeless, merge
from tensorcast.deploy.control import ServiceStatus
from tensorcast.deploy.home import Layout
from tensorcast.deploy.options import (
    ClusterConfig,
    EmbeddedNats,
    External,
    NodeConfig,
    UpOptions,
)
from tensorcast.schema.errors import InvalidArgument

HOME = Path("/nowhere")
KNOWN = ClusterConfig(
    cluster="demo",
    context="demo",
    nats=EmbeddedNats(port=1, monitor_port=2, user="u", password="p"),
    postgres=External(url="postgresql://old/db"),
    nodes=(NodeConfig(name="n1", dram_bytes=7 << 20),),
    sockets="/run/tc",
)


def service(name, state, **more):
    return ServiceStatus(name=name, state=state, **more)


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


def test_dram_is_set_for_all_nodes():
    merged = merge(KNOWN, UpOptions(home=HOME, nodes=2, dram_bytes=1 << 30))
    assert [node.dram_bytes for node in merged.nodes] == [1 << 30, 1 << 30]


@pytest.mark.parametrize("wrong", [{"cluster": "other"}, {"nats_url": "nats://elsewhere"}])
def test_contradictions_are_refused(wrong):
    with pytest.raises(InvalidArgument):
        merge(KNOWN, UpOptions(home=HOME, **wrong))


def test_patience_ends_earlier_for_ours_than_for_postgres():
    assert is_hopeless(service("n1", "restarting", failures=6))
    assert not is_hopeless(service("n1", "restarting", failures=5))
    assert not is_hopeless(service("postgres", "restarting", failures=20))


def test_the_guilty_one_is_not_the_one_that_waits_for_it():
    services = (
        service("nats", "up"),
        service("controlplane", "waiting", detail="waiting for postgres"),
        service("postgres", "restarting", detail="the last one was killed by SIGKILL"),
    )
    error = explain_unready(Layout(HOME), services)
    assert "postgres does not become ready" in error.message
    assert "SIGKILL" in error.message
    assert "doctor" in error.hint


def test_a_supervisor_that_never_answered_is_named():
    assert "supervisor" in explain_unready(Layout(HOME), ()).message
