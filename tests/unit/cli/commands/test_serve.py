from __future__ import annotations

import sys

from cli_samples import Tcctl

MOVER = "serve mover --nats-url nats://h:1 --data-dir /data --socket /run/m.sock --node n7"


def test_the_control_plane_replaces_tcctl(tcctl: Tcctl) -> None:
    tcctl.environ["HOME"] = "/root"
    line = "serve controlplane --nats-url nats://h:1 --postgres-url postgresql://h/d"
    assert tcctl(*line.split(), "--services", "api,timers").code == 0
    ((program, command, environ),) = tcctl.started
    assert program == sys.executable
    assert command[1:] == ["-m", "tensorcast.controlplane.main", "--services", "api,timers"]
    assert environ["TENSORCAST_POSTGRES_URL"] == "postgresql://h/d"
    assert environ["TENSORCAST_CLUSTER"] == "default"
    assert environ["HOME"] == "/root"
    assert "TENSORCAST_NODE_TIMEOUT_S" not in environ


def test_a_mover_gets_its_settings_in_the_environment(tcctl: Tcctl) -> None:
    limits = ("--dram", "4GiB", "--disk", "1TiB", "--overflow", "evict")
    assert tcctl(*MOVER.split(), *limits, "--cluster", "lab").code == 0
    ((_, command, environ),) = tcctl.started
    assert command[1:] == ["-m", "tensorcast.movers.main"]
    wanted = {
        "TENSORCAST_NODE": "n7",
        "TENSORCAST_CLUSTER": "lab",
        "TENSORCAST_DATA_DIR": "/data",
        "TENSORCAST_SOCKET": "/run/m.sock",
        "TENSORCAST_DATA_LISTEN": "127.0.0.1:0",
        "TENSORCAST_DRAM_BYTES": str(4 << 30),
        "TENSORCAST_DISK_BYTES": str(1 << 40),
        "TENSORCAST_OVERFLOW": "evict",
    }
    assert wanted.items() <= environ.items()


def test_a_mover_without_a_node_is_wrong_usage(tcctl: Tcctl) -> None:
    run = tcctl(*["serve", "mover", "--nats-url", "nats://h:1"])
    assert run.code == 2
    assert tcctl.started == []
