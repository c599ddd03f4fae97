from __future__ import annotations

import pytest

from tensorcast.movers.settings import read_settings
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.ids import Overflow
from tensorcast.schema.rdma import RdmaSettings

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
            "TENSORCAST_LABELS": "rack=r1,host=h7",
            "TENSORCAST_BANDWIDTH": "1gbit",
            "TENSORCAST_VERIFY": "off",
            "TENSORCAST_OBJECT_URL": "s3://bucket/prefix",
        }
    )
    assert settings.listen == "[::1]:99"
    assert settings.advertise == "n1.example"
    assert settings.dram_bytes == 1 << 30
    assert settings.heartbeat_s == 0.25
    assert settings.labels == {"rack": "r1", "host": "h7"}
    assert settings.bandwidth == 125_000_000
    assert not settings.verify
    assert settings.object_url == "s3://bucket/prefix"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TENSORCAST_NODE", ""),
        ("TENSORCAST_NODE", "Not a node"),
        ("TENSORCAST_DATA_LISTEN", "127.0.0.1"),
        ("TENSORCAST_DATA_LISTEN", "127.0.0.1:99999"),
        ("TENSORCAST_DRAM_BYTES", "plenty"),
        ("TENSORCAST_DRAM_BYTES", "-1"),
        ("TENSORCAST_DRAM_BYTES", "2000000.5"),
        ("TENSORCAST_DISK_BYTES", "0.5"),
        ("TENSORCAST_OPERATIONS_MAX", "2.9"),
        ("TENSORCAST_KV_BYTES", "1.5"),
        ("TENSORCAST_KV_DISK_BYTES", "1.5"),
        ("TENSORCAST_GPU_BYTES", "1.5"),
        ("TENSORCAST_HEARTBEAT_S", "nan"),
        ("TENSORCAST_LABELS", "rack"),
        ("TENSORCAST_BANDWIDTH", "fast"),
        ("TENSORCAST_VERIFY", "sometimes"),
        ("TENSORCAST_SOCKET", "/" + "x" * 120),
        ("TENSORCAST_OVERFLOW", "explode"),
        ("TENSORCAST_DRAM_HIGH", "1.5"),
        ("TENSORCAST_DRAM_LOW", "0.99"),
        ("TENSORCAST_DISK_HIGH", "0"),
        ("TENSORCAST_DISK_BYTES", "-5"),
        ("TENSORCAST_ROOM_WAIT_S", "soon"),
        ("TENSORCAST_OBJECT_URL", "bucket/prefix"),
        ("TENSORCAST_OBJECT_URL", "https://host/prefix"),
    ],
)
def test_nonsense_is_refused(name: str, value: str):
    with pytest.raises(InvalidArgument):
        read_settings({**GOOD, name: value})


def test_tiers_can_be_set():
    settings = read_settings(
        {
            **GOOD,
            "TENSORCAST_DRAM_HIGH": "0.5",
            "TENSORCAST_DISK_HIGH": "0.8",
            "TENSORCAST_DISK_LOW": "0.4",
            "TENSORCAST_DISK_BYTES": "1e9",
            "TENSORCAST_OVERFLOW": "evict",
            "TENSORCAST_ROOM_WAIT_S": "2.5",
        }
    )
    assert settings.dram_marks.high == 0.5
    assert 0.4 < settings.dram_marks.low < 0.5  # it follows the high one
    assert (settings.disk_marks.high, settings.disk_marks.low) == (0.8, 0.4)
    assert settings.disk_bytes == 10**9
    assert settings.overflow is Overflow.EVICT
    assert settings.room_wait_s == 2.5


def test_without_a_word_the_disk_is_used_and_nothing_is_lost():
    settings = read_settings(GOOD)
    assert settings.disk_bytes is None
    assert settings.overflow is Overflow.SPILL


def test_blocks_take_a_part_of_the_memory():
    assert read_settings({**GOOD, "TENSORCAST_DRAM_BYTES": "400000000"}).kv_bytes == 100_000_000
    assert read_settings({**GOOD, "TENSORCAST_KV_BYTES": "0"}).kv_bytes == 0
    assert read_settings({**GOOD, "TENSORCAST_KV_EVICTION": "lfu"}).kv_eviction == "lfu"
    for wrong in (
        {"TENSORCAST_KV_BYTES": "-1"},
        {"TENSORCAST_DRAM_BYTES": "2000000", "TENSORCAST_KV_BYTES": "2000001"},
        {"TENSORCAST_KV_EVICTION": "random"},
    ):
        with pytest.raises(InvalidArgument, match="TENSORCAST_KV"):
            read_settings(GOOD | wrong)


def test_rdma_is_automatic_unless_something_is_said():
    assert read_settings(GOOD).rdma == RdmaSettings()
    said = {"TENSORCAST_RDMA": "mlx5_1,mlx5_0", "TENSORCAST_RDMA_MTU": "1024"}
    wanted = RdmaSettings(devices=("mlx5_1", "mlx5_0"), mtu_bytes=1024)
    assert read_settings(GOOD | said).rdma == wanted
    with pytest.raises(InvalidArgument, match="TENSORCAST_RDMA_MTU"):
        read_settings({**GOOD, "TENSORCAST_RDMA_MTU": "1500"})
