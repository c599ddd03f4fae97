from __future__ import annotations

import pytest

from tensorcast.movers.settings import read_settings
from tensorcast.schema.errors import InvalidArgument

GOOD = {
    "TENSORCAST_NODE": "n1",
    "TENSORCAST_NATS_URL": "nats://127.0.0.1:4222",
    "TENSORCAST_DATA_DIR": "/data/n1",
}


def test_the_least_environment_is_enough():
    settings = read_settings(GOOD)
    assert settings.cluster == "default"
    assert str(settings.socket) == "/data/n1/mover.sock"
    assert settings.listen == "127.0.0.1:0"


def test_everything_can_be_set():
    settings = read_settings(
        {
            **GOOD,
            "TENSORCAST_DATA_LISTEN": "[::1]:99",
            "TENSORCAST_DATA_ADVERTISE": "n1.example",
            "TENSORCAST_DRAM_BYTES": str(1 << 30),
            "TENSORCAST_HEARTBEAT_S": "0.25",
        }
    )
    assert settings.listen == "[::1]:99"
    assert settings.advertise == "n1.example"
    assert settings.dram_bytes == 1 << 30
    assert settings.heartbeat_s == 0.25


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TENSORCAST_NODE", ""),
        ("TENSORCAST_NODE", "Not a node"),
        ("TENSORCAST_DATA_LISTEN", "127.0.0.1"),
        ("TENSORCAST_DATA_LISTEN", "127.0.0.1:99999"),
        ("TENSORCAST_DRAM_BYTES", "plenty"),
        ("TENSORCAST_DRAM_BYTES", "-1"),
        ("TENSORCAST_HEARTBEAT_S", "nan"),
        ("TENSORCAST_SOCKET", "/" + "x" * 120),
    ],
)
def test_nonsense_is_refused(name: str, value: str):
    with pytest.raises(InvalidArgument):
        read_settings({**GOOD, name: value})
