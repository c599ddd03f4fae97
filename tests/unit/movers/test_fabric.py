import msgspec

from tensorcast.movers.core.fabric import RdmaSettings
from tensorcast.movers.fabric import open_fabric
from tensorcast.movers.settings import read_settings

SETTINGS = read_settings(
    {
        "TENSORCAST_NODE": "n1",
        "TENSORCAST_NATS_URL": "nats://h:4222",
        "TENSORCAST_DATA_DIR": "/nowhere",
    }
)


def sign(*_: object) -> bytes:
    return b""


def test_a_machine_without_adapters_talks_over_tcp_and_says_why():
    rdma = RdmaSettings(devices=("no_such_device",))
    fabric = open_fabric(msgspec.structs.replace(SETTINGS, rdma=rdma), sign)
    assert list(fabric.transports) == ["tcp"]
    assert fabric.why_not
    assert fabric.guests(None, None) == {}
    fabric.watcher.mapped(memoryview(b""))
    fabric.close()


def test_it_can_be_switched_off():
    off = msgspec.structs.replace(SETTINGS, rdma=RdmaSettings(is_on=False))
    assert open_fabric(off, sign).why_not == "RDMA is switched off."
