from __future__ import annotations

import pytest

from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.rdma import RdmaSettings, find_misspelt, read_rdma


def test_it_is_automatic_unless_something_is_said():
    assert read_rdma({}) == read_rdma({"TENSORCAST_RDMA": "auto"}) == RdmaSettings()
    assert not read_rdma({"TENSORCAST_RDMA": "off"}).is_on


def test_everything_can_be_set():
    said = {
        "TENSORCAST_RDMA": "mlx5_1, mlx5_0,,mlx5_1",
        "TENSORCAST_RDMA_QUEUE_PAIRS": "16",
        "TENSORCAST_RDMA_GID_INDEX": "0",
        "TENSORCAST_RDMA_MTU": "1024",
        "TENSORCAST_RDMA_TRAFFIC_CLASS": "0x68",
        "TENSORCAST_RDMA_SERVICE_LEVEL": "15",
        "TENSORCAST_RDMA_READS": "4",
        "TENSORCAST_RDMA_POLL": "on",
        "TENSORCAST_RDMA_ODP": "on",
    }
    assert read_rdma(said) == RdmaSettings(
        devices=("mlx5_1", "mlx5_0"),
        queue_pairs=16,
        gid_index=0,
        mtu_bytes=1024,
        traffic_class=104,
        service_level=15,
        reads_max=4,
        polls=True,
        odp=True,
    )
    assert list(find_misspelt(said)) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "OFF"),
        ("", "Auto"),
        ("", "on"),
        ("", "none"),
        ("", ","),
        ("", "auto,mlx5_0"),
        ("", "mlx5_0 mlx5_1"),
        ("_TRAFFIC_CLASS", "256"),
        ("_TRAFFIC_CLASS", "300"),
        ("_SERVICE_LEVEL", "16"),
        ("_QUEUE_PAIRS", "2.9"),
        ("_QUEUE_PAIRS", "1e9"),
        ("_QUEUE_PAIRS", "0"),
        ("_GID_INDEX", "1.5"),
        ("_GID_INDEX", "256"),
        ("_MTU", "1024.5"),
        ("_MTU", "9000"),
        ("_READS", "0"),
        ("_READS", "256"),
        ("_POLL", "yes"),
        ("_ODP", "1"),
    ],
)
def test_what_would_have_to_be_changed_is_refused(name: str, text: str):
    with pytest.raises(InvalidArgument) as refused:
        read_rdma({f"TENSORCAST_RDMA{name}": text})
    assert refused.value.message == f"TENSORCAST_RDMA{name} is {text!r}."
    assert refused.value.hint


def test_a_name_that_is_no_setting_is_told():
    said = {
        "TENSORCAST_RDMA_TRAFIC_CLASS": "1",
        "TENSORCAST_RDMA_X": "",
        "TENSORCAST_RDMA_GUEST": "/x",
    }
    assert list(find_misspelt(said)) == [
        "TENSORCAST_RDMA_TRAFIC_CLASS is no setting, and has no effect."
        " TENSORCAST_RDMA_TRAFFIC_CLASS may be meant.",
        "TENSORCAST_RDMA_X is no setting, and has no effect.",
    ]
