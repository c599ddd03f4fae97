import pytest

from tensorcast.movers.core.streams import (
    CPU_STREAMS_MAX,
    STREAMS_MAX,
    Path,
    Try,
    choose_congestion,
    first_streams,
    next_streams,
    useful_streams,
)

LOOPBACK = Path(rtt_s=5e-5, loss=0.0, window_bytes=16 << 20, is_local=True)
LAN = Path(rtt_s=2e-4, loss=0.0, window_bytes=16 << 20, is_local=False)
FULL_LAN = Path(rtt_s=0.02, least_rtt_s=2e-4, loss=0.01, window_bytes=16 << 20, is_local=False)
"""With a queue that is full."""
LONG = Path(rtt_s=0.08, loss=0.0, window_bytes=16 << 20, is_local=False)
LOSSY = Path(rtt_s=0.02, loss=0.01, window_bytes=16 << 20, is_local=False)
NEAR_LOSSY = Path(rtt_s=2e-4, loss=0.01, window_bytes=16 << 20, is_local=False)


@pytest.mark.parametrize(
    ("path", "rate", "cores", "useful"),
    [
        (LOOPBACK, 5e9, 2, 2),
        (LOOPBACK, 5e9, 3, 2),
        (LOOPBACK, 5e9, 1, 1),
        (LOOPBACK, 5e9, 64, CPU_STREAMS_MAX),
        (LAN, 1.2e8, 2, 1),
        (LAN, 1.2e9, 2, 2),
        (LAN, 5e9, 64, CPU_STREAMS_MAX),
        (LONG, 5e7, 4, 1),
        (LONG, 1.5e8, 4, STREAMS_MAX),
        (LOSSY, 1e6, 2, STREAMS_MAX),
        (NEAR_LOSSY, 1e8, 2, 1),
    ],
)
def test_connections_that_can_help(path, rate, cores, useful):
    assert useful_streams(path, rate, cores) == useful


def tries(*pairs):
    return tuple(Try(streams=streams, rate=rate) for streams, rate in pairs)


@pytest.mark.parametrize(
    ("seen", "path", "cores", "wanted"),
    [
        (tries((2, 5e9)), LOOPBACK, 2, 2),
        (tries((1, 5e9)), LOOPBACK, 1, 1),
        (tries((1, 1e8)), LAN, 8, 1),
        (tries((1, 1e9)), LAN, 8, 2),
        (tries((1, 1e9), (2, 1.05e9)), LAN, 8, 2),
        (tries((1, 1e9), (2, 1.9e9)), LAN, 8, 4),
        (tries((1, 1e9), (2, 1.9e9), (4, 3e9)), LAN, 8, 4),
        (tries((1, 1e6), (2, 2e6), (4, 4e6), (8, 8e6)), LOSSY, 2, 16),
        (tries((1, 1e6), (2, 2e6), (4, 4e6), (8, 8e6), (16, 16e6)), LOSSY, 2, 16),
        (tries((1, 1e6), (2, 2e6), (4, 4e6), (8, 4e6)), LOSSY, 2, 8),
        (tries((4, 1e9)), LOOPBACK, 2, 4),
    ],
)
def test_it_doubles_as_long_as_that_pays(seen, path, cores, wanted):
    assert next_streams(seen, path, cores) == wanted


@pytest.mark.parametrize(
    ("path", "present", "suited"),
    [
        (LOOPBACK, "bbr", "cubic"),
        (LAN, "cubic", "cubic"),
        (LAN, "bbr", "cubic"),
        (LAN, "dctcp", "dctcp"),
        (FULL_LAN, "bbr", "cubic"),
        (FULL_LAN, "cubic", "cubic"),
        (LONG, "bbr", "bbr"),
        (LONG, "cubic", "cubic"),
        (NEAR_LOSSY, "cubic", "cubic"),
        (LOSSY, "cubic", "bbr"),
    ],
)
def test_congestion_control_follows_the_path(path, present, suited):
    assert choose_congestion(path, present) == suited


@pytest.mark.parametrize(
    ("cores", "is_local", "first"), [(1, True, 1), (2, True, 2), (64, True, 2), (64, False, 1)]
)
def test_a_channel_begins_with_few_connections(cores, is_local, first):
    assert first_streams(cores, is_local=is_local) == first
