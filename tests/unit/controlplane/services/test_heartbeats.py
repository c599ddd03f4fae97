import pytest

from rigs import Clock
from tensorcast.controlplane.services.heartbeats import Heartbeats
from tensorcast.schema.ids import EngineId, LeaseId, NodeId, Tier

GOOD = b'{"epoch": 7, "tiers": {"dram": {"capacity": 10, "used": 3}}, "later": 1}'


@pytest.fixture
def clock():
    return Clock()


def test_the_last_heartbeat_is_kept(clock):
    heard = Heartbeats(clock)
    heard.hear_node(NodeId("n1"), b'{"epoch": 6}')
    clock.now_s += 1
    heard.hear_node(NodeId("n1"), GOOD)
    found = heard.nodes[NodeId("n1")]
    assert (found.at_s, found.heartbeat.epoch) == (clock.now_s, 7)
    assert found.heartbeat.tiers[Tier.DRAM].used == 3


@pytest.mark.parametrize("payload", [b"", b"[]", b"{}", b'{"epoch": "x"}', b"\xff"])
def test_anything_else_is_ignored(clock, payload):
    heard = Heartbeats(clock)
    heard.hear_node(NodeId("n1"), payload)
    assert heard.nodes == {}


def test_renewals_of_leases_that_nobody_holds_are_forgotten(clock):
    heard = Heartbeats(clock)
    heard.hear_lease(LeaseId("l1"))
    heard.hear_lease(LeaseId("l2"))
    heard.forget_leases(frozenset({LeaseId("l2"), LeaseId("l3")}))
    assert heard.leases == {"l2": clock.now_s}


def test_signs_of_life_of_engines_carry_their_load(clock):
    heard = Heartbeats(clock)
    heard.hear_engine(EngineId("e1"), b'{"life": "one", "load": {"cache_usage": 0.5}, "later": 1}')
    heard.hear_engine(EngineId("e2"), b'{"life": "two"}')
    for payload in (b"", b"[]", b"{}", b'{"life": 1}', b'{"life": "x", "load": {"a": "b"}}'):
        heard.hear_engine(EngineId("e3"), payload)
    found = heard.engines[EngineId("e1")]
    assert (found.at_s, found.pulse.life, found.pulse.load) == (
        clock.now_s,
        "one",
        {"cache_usage": 0.5},
    )
    heard.forget_engines(frozenset({EngineId("e2")}))
    assert set(heard.engines) == {"e2"}


def test_a_process_that_knows_no_load_does_not_hide_what_another_one_said(clock):
    heard, engine = Heartbeats(clock), EngineId("e1")
    heard.hear_engine(engine, b'{"life": "one", "load": {"cache_usage": 0.5}}')
    clock.now_s += 1
    heard.hear_engine(engine, b'{"life": "one"}')
    found = heard.engines[engine]
    assert (found.at_s, found.pulse.load) == (clock.now_s, {"cache_usage": 0.5})
    heard.hear_engine(engine, b'{"life": "two"}')
    assert heard.engines[engine].pulse.load == {}
