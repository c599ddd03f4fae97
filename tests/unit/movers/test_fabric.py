import msgspec
import pytest

from tensorcast.movers.fabric import open_fabric
from tensorcast.movers.settings import read_settings
from tensorcast.schema.errors import Unavailable
from tensorcast.schema.rdma import RdmaSettings

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


def test_movers_of_one_machine_may_use_shared_memory():
    on = msgspec.structs.replace(SETTINGS, shm=True, rdma=RdmaSettings(is_on=False))
    fabric, again = open_fabric(on, sign), open_fabric(on, sign)
    assert fabric.names == again.names
    assert fabric.names[0].startswith("shm-")
    fabric.guests(None, None)
    with pytest.raises(Unavailable, match="is taken"):
        again.guests(None, None)
    fabric.stop_serving()
    fabric.stop_serving()
    again.guests(None, None)
    again.stop_serving()


def test_it_can_be_switched_off():
    off = msgspec.structs.replace(SETTINGS, rdma=RdmaSettings(is_on=False))
    assert open_fabric(off, sign).why_not == "RDMA is switched off."
