"""The services of a cluster as values."""

import signal
from pathlib import Path

import msgspec
import pytest

from tensorcast.deploy.home import Layout
from tensorcast.deploy.options import (
    ClusterConfig,
    EmbeddedNats,
    EmbeddedPostgres,
    External,
    NodeConfig,
)
from tensorcast.deploy.plan import plan_services
from tensorcast.deploy.probes import NatsProbe, PostgresProbe

LAYOUT = Layout(Path("/home/tc"))
CONFIG = ClusterConfig(
    cluster="demo",
    context="demo",
    nats=EmbeddedNats(port=20001, monitor_port=20002, user="u", password="np"),
    postgres=EmbeddedPostgres(
        port=20003,
        password="pp",
        admin_password="ap",
        folder="/pg",
        programs="/pg/bin",
        run_as="postgres",
    ),
    nodes=(NodeConfig(name="n1", dram_bytes=7), NodeConfig(name="n2", dram_bytes=8)),
    sockets="/run/tc",
)


def plan(**changes):
    config = msgspec.structs.replace(CONFIG, **changes)
    specs = plan_services(config, LAYOUT, nats_program=Path("/bin/nats-server"))
    return {spec.name: spec for spec in specs}


def test_the_services_and_what_they_wait_for():
    specs = plan()
    assert list(specs) == ["nats", "postgres", "controlplane", "n1", "n2"]
    assert specs["controlplane"].needs == ("nats", "postgres")
    assert specs["n1"].needs == ("nats",)
    assert specs["n1"].needs_at_first == ("controlplane",)
    assert specs["nats"].needs == specs["postgres"].needs == ()


def test_stopping_goes_from_the_movers_to_the_log():
    by_stage = sorted(plan().values(), key=lambda spec: -spec.stage)
    assert [spec.name for spec in by_stage] == ["n1", "n2", "controlplane", "postgres", "nats"]


def test_a_mover_gets_the_limits_of_its_tiers():
    node = NodeConfig(name="n1", dram_bytes=7, disk_bytes=9, overflow="reject")
    environ = plan(nodes=(node,))["n1"].environ
    assert environ["TENSORCAST_DISK_BYTES"] == "9"
    assert environ["TENSORCAST_OVERFLOW"] == "reject"
    assert not {"TENSORCAST_DISK_BYTES", "TENSORCAST_OVERFLOW"} & plan()["n1"].environ.keys()


def test_a_mover_gets_its_node():
    environ = plan()["n2"].environ
    assert environ["TENSORCAST_NODE"] == "n2"
    assert environ["TENSORCAST_SOCKET"] == "/run/tc/n2.sock"
    assert environ["TENSORCAST_DATA_DIR"] == "/home/tc/nodes/n2"
    assert environ["TENSORCAST_DRAM_BYTES"] == "8"
    assert "TENSORCAST_KV_DISK_BYTES" not in environ
    roomy = (NodeConfig(name="n1", dram_bytes=7, kv_disk_bytes=9),)
    assert plan(nodes=roomy)["n1"].environ["TENSORCAST_KV_DISK_BYTES"] == "9"
    assert environ["TENSORCAST_NATS_URL"] == "nats://u:np@127.0.0.1:20001"
    assert "TENSORCAST_POSTGRES_URL" not in environ


def test_only_movers_keep_descriptors_with_us():
    assert {name: spec.fds_max > 0 for name, spec in plan().items() if spec.fds_max} == {
        "n1": True,
        "n2": True,
    }


def test_postgres_shuts_down_fast_and_runs_as_its_user():
    spec = plan()["postgres"]
    assert spec.stop_signal == signal.SIGINT
    assert spec.run_as == "postgres"
    assert not spec.inherits_environ
    assert spec.command[:3] == ("/pg/bin/postgres", "-D", "/pg/data")


def test_passwords_are_in_no_command_line():
    words = [word for spec in plan().values() for word in spec.command]
    assert not {"np", "pp", "ap"} & {part for word in words for part in word.split("=")}


def test_external_servers_are_probed_but_not_run():
    specs = plan(
        nats=External(url="nats://a:hush@nats.example:5222"),
        postgres=External(url="postgresql://bob:hush@pg.example/events"),
    )
    assert specs["nats"].command == specs["postgres"].command == ()
    assert specs["nats"].probe == NatsProbe(host="nats.example", port=5222)
    assert specs["postgres"].probe == PostgresProbe(
        host="pg.example", port=5432, user="bob", database="events"
    )
    assert not any("hush" in spec.about for spec in specs.values())


def test_an_external_postgres_on_a_socket_is_not_probed():
    specs = plan(postgres=External(url="postgresql://bob@/events?host=/run/postgresql"))
    assert specs["postgres"].probe is None


@pytest.mark.parametrize("name", ["controlplane", "n1"])
def test_commands_can_be_replaced(name):
    specs = plan(controlplane_command=("perf", "x"), mover_command=("perf", "x"))
    assert specs[name].command == ("perf", "x")
    assert plan()[name].command[1] == "-m"
