import pytest

from tensorcast.movers.core.topology import parse_bandwidth, parse_labels
from tensorcast.schema.errors import InvalidArgument


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("", {}),
        ("rack=r1", {"rack": "r1"}),
        (" rack = r1 , host=h7.example, zone=eu/1 ", {"rack": "r1", "host": "h7.example"}),
    ],
)
def test_labels(text, labels):
    assert parse_labels(text).items() >= labels.items()


@pytest.mark.parametrize("text", ["rack", "=r1", "rack=", "rack=a b", "a=1,a=2", "x=" + "y" * 64])
def test_labels_that_are_none(text):
    with pytest.raises(InvalidArgument, match="TENSORCAST_LABELS"):
        parse_labels(text)


def test_too_many_labels():
    with pytest.raises(InvalidArgument, match="33 labels"):
        parse_labels(",".join(f"l{n}=v" for n in range(33)))


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("", 0),
        ("125000000", 125_000_000),
        ("1gbit", 125_000_000),
        ("2.5 Gbit/s", 312_500_000),
        ("100MB/s", 100_000_000),
        ("1MiB", 1 << 20),
    ],
)
def test_bandwidth(text, rate):
    assert parse_bandwidth(text) == rate


@pytest.mark.parametrize("text", ["fast", "-1", "1 furlong", "0", "gbit", "1e9"])
def test_bandwidth_that_is_none(text):
    with pytest.raises(InvalidArgument, match="TENSORCAST_BANDWIDTH"):
        parse_bandwidth(text)
