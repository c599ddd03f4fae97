"""What a mover is told of its RDMA fabric, and what two ends agree on. Pure."""

from __future__ import annotations

import msgspec

MTU_BYTES = {256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5}
"""Path MTUs and their numbers (IBTA, and `enum ibv_mtu`)."""


class RdmaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`devices`: names, () chooses; `queue_pairs` of each device. `mtu_bytes` and `gid_index` None
    choose. `reads_max`: READs that one queue pair has in flight. `polls`: a rail spins for
    completions instead of sleeping. `windows`: keys come from memory windows where the device has
    them. `odp`: memory is not pinned where the device can fault pages. `pushes`: what is small
    comes by WRITE_WITH_IMM. `ack_exponent` and
    `retries` are the queue pair's: 4.096 us times 2 to that power, so often."""

    is_on: bool = True
    devices: tuple[str, ...] = ()
    queue_pairs: int = 1
    gid_index: int | None = None
    mtu_bytes: int | None = None
    traffic_class: int = 0
    service_level: int = 0
    reads_max: int = 16
    polls: bool = False
    windows: bool = True
    odp: bool = False
    pushes: bool = True
    ack_exponent: int = 14
    retries: int = 7
    rebuilds_max: int = 1


def agree_mtu(ours: int, theirs: int, wished_bytes: int | None) -> int:
    """The number of the path MTU that both ports carry, and no more than is wished."""
    wished = MTU_BYTES.get(wished_bytes, 5) if wished_bytes is not None else 5
    return max(1, min(ours, theirs, wished))


def agree_reads(ours: int, theirs: int, wished: int) -> int:
    """How many READs may be in flight: as many as we may start, the peer may answer, and are
    wished; one at least. A queue pair that has more waits, and what is behind them waits too."""
    return max(1, min(ours, theirs, wished))


def pair_rails(ours: int, theirs: int, queue_pairs: int) -> tuple[tuple[int, int], ...]:
    """The rails of a channel: which device of ours goes with which of the peer's. Device n with
    device n, as fabrics are cabled where each has a switch of its own."""
    count = max(ours, theirs) * queue_pairs
    return tuple((n % ours, n % theirs) for n in range(count))
