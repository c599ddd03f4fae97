import pytest

from tensorcast.cli.exits import Exit, exit_of
from tensorcast.engines.identity import LIFE_VARIABLE
from tensorcast.engines.vllm import agent
from tensorcast.engines.vllm.agent import (
    Settings,
    _Source,
    choose_source,
    find_sources,
    is_its_own,
    life_by_address,
    name_by_address,
    parse_arguments,
)
from tensorcast.engines.vllm.events import Sources
from tensorcast.schema.errors import (
    Conflict,
    Corrupt,
    InvalidArgument,
    NotFound,
    Rejected,
    Timeout,
    Unavailable,
)
from tensorcast.schema.ids import parse_engine
from tensorcast.schema.signals import parse_topic


def test_a_command_line():
    settings = parse_arguments(
        ["http://h:8000/", "--kv-events", "tcp://h:1", "--replay", "tcp://h:2", "--engine", "e1"]
    )
    assert settings == Settings("http://h:8000", "tcp://h:1", "tcp://h:2", "e1", None, None, 2.0)


def test_without_a_cluster_it_ends_as_tcctl_does(monkeypatch, tmp_path, caplog):
    for name in ("TENSORCAST_NATS_URL", "TENSORCAST_SOCKET", "TENSORCAST_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TENSORCAST_CONFIG_DIR", str(tmp_path))
    assert agent.main(["http://127.0.0.1:9"]) == Exit.UNREACHABLE
    assert "No cluster is known" in caplog.text
    assert agent.main(["http://127.0.0.1:9", "--context", "nobody"]) == Exit.NOT_FOUND


def test_each_error_has_the_exit_code_of_tcctl():
    for kind in (InvalidArgument, NotFound, Conflict, Rejected, Timeout, Unavailable, Corrupt):
        assert agent.EXITS.get(kind.code, agent.FAILED) == exit_of(kind("x"))


def test_an_agent_that_the_engine_starts_knows_its_life(monkeypatch):
    monkeypatch.setenv(LIFE_VARIABLE, "abc")
    attached = parse_arguments(["http://h:1", "--attached"])
    assert attached.life == "abc"
    assert is_its_own("abc", attached)
    assert not is_its_own("of before", attached)
    alone = parse_arguments(["http://h:1"])
    assert alone.life is None
    assert is_its_own("abc", alone)
    assert not is_its_own(life_by_address("http://h:1"), alone)


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:8000", "https://[::1]:80/v1", "http://a.b-c:1", "host:1", "http://-x-"],
)
def test_an_engine_without_a_name_is_called_by_its_address(url):
    name = name_by_address(url)
    assert parse_engine(name) == name
    assert parse_topic(f"engine.load.{name}")
    assert life_by_address(url) == life_by_address(url)
    assert len(life_by_address(url)) <= 64


@pytest.mark.parametrize(
    ("source", "reached"),
    [
        (_Source("tcp://*:5557", "tcp://*:5558"), Sources("tcp://h:5557", "tcp://h:5558")),
        (_Source("tcp://10.0.0.1:7", None), Sources("tcp://10.0.0.1:7", None)),
        (_Source("ipc:///e", "ipc:///r"), Sources("ipc:///e", "ipc:///r")),
        (_Source("tcp://0.0.0.0:7"), Sources("tcp://h:7", None)),
        (_Source(""), None),
        (_Source("tcp://*:1", enable_kv_cache_events=False), None),
    ],
)
def test_where_an_engine_publishes(source, reached):
    assert choose_source({"0": source}, "h") == reached


def test_a_replay_endpoint_may_be_named():
    chosen = choose_source({"0": _Source("tcp://*:1", "tcp://*:2")}, "h", "tcp://other:3")
    assert chosen == Sources("tcp://h:1", "tcp://other:3")


def test_several_ranks_need_several_agents():
    with pytest.raises(InvalidArgument, match="2 ranks"):
        choose_source({"0": _Source("tcp://*:1"), "1": _Source("tcp://*:2")}, "h")


async def test_the_addresses_of_a_command_line_count():
    named = Settings("http://h:1", "tcp://e:1", "", None, None, None, 2.0)
    assert await find_sources(named) == Sources("tcp://e:1", None)
    assert await find_sources(named._replace(events="none")) is None
