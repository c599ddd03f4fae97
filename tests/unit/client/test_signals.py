from datetime import UTC, datetime

import pytest

from samples import BEGIN
from tensorcast.client.api import ControlPlane
from tensorcast.client.position import Position
from tensorcast.client.signals import AsyncSignals, check_start, consumer_config, parse_reply
from tensorcast.schema.errors import InvalidArgument

SUBJECTS = "tc.c.log.signal.a.*"


@pytest.mark.parametrize(
    ("start", "policy"),
    [
        ("new", {"deliver_policy": "new"}),
        ("first", {"deliver_policy": "all"}),
        ("last", {"deliver_policy": "last_per_subject"}),
        (7, {"deliver_policy": "by_start_sequence", "opt_start_seq": 7}),
        (BEGIN, {"deliver_policy": "by_start_time", "opt_start_time": BEGIN.isoformat()}),
    ],
)
def test_where_a_consumer_starts(start, policy):
    config = consumer_config("s1", SUBJECTS, check_start(start), ack_s=None)
    assert policy.items() <= config.items()
    assert config["filter_subject"] == SUBJECTS


def test_a_durable_consumer_is_kept_and_bounded():
    durable = consumer_config("signals_d", SUBJECTS, "new", ack_s=2.5)
    assert durable["durable_name"] == durable["name"] == "signals_d"
    assert durable["ack_policy"] == "explicit"
    assert durable["ack_wait"] == 2_500_000_000
    assert durable["max_ack_pending"] == 1000
    assert "inactive_threshold" not in durable
    calls = consumer_config("signals_c", SUBJECTS, "new", ack_s=2.5, idle_s_max=60)
    assert calls["inactive_threshold"] == 60_000_000_000
    passing = consumer_config("s1", SUBJECTS, "new", ack_s=None)
    assert "durable_name" not in passing
    assert passing["inactive_threshold"] > 0


@pytest.mark.parametrize("start", ["", "yesterday", 0, -1, True, 1.5, datetime(2030, 1, 1), None])
def test_where_nothing_starts(start):
    with pytest.raises(InvalidArgument, match="cannot be read from"):
        check_start(start)


def test_a_moment_with_a_zone_is_a_start():
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    assert check_start(moment) == moment


def test_only_a_durable_reader_gives_signals_up():
    api = ControlPlane("nats://127.0.0.1:1", "c", "user:ada@desk", Position())
    with pytest.raises(InvalidArgument, match="Only a durable reader gives signals up"):
        AsyncSignals(api, "a.*", dead_after=3)
    assert AsyncSignals(api, "a.*", durable="d", dead_after=3).durable == "d"


@pytest.mark.parametrize(
    "reply",
    ["$JS.ACK.TC_c_LOG.signals_d.2.17.9.1900000000.0", "$JS.ACK.d.h.TC_c_LOG.s.2.17.9.19.0.token"],
)
def test_a_reply_tells_position_and_delivery(reply):
    assert parse_reply(reply) == (17, 2)
