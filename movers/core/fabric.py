"""What two ends of an RDMA fabric agree on. Pure."""

from __future__ import annotations

from tensorcast.schema.rdma import MTU_BYTES


def agree_mtu(ours: int, theirs: int, wished_bytes: int | None) -> int:
    """The number of the path MTU that both ports carry, and no more than is wished."""
    wished = MTU_BYTES.get(wished_bytes, 5) if wished_bytes is not None else 5
    return max(1, min(ours, theirs, wished))


def agree_reads(ours: int, theirs: int, wished: int) -> int:
    """How many READs may be in flight: as many as we may start, the peer may answer, and are
    wished; one at least. A queue pair that has more waits, and what is behind them waits too."""
    return max(1, min(ours, theirs, wished))


RAILS_MAX = 16
"""Most rails of one channel."""


def pair_rail(
    number: int, ours: int, theirs: int | None, queue_pairs: int
) -> tuple[int, int] | None:
    """Rail `number` of a channel: which device of ours goes with which of the peer's. Device n with
    device n, as fabrics are cabled where each has a switch of its own. `theirs` None: how many the
    peer has is not known yet. None: there are no more rails."""
    if number >= min(RAILS_MAX, max(ours, theirs or 0) * queue_pairs):
        return None
    return number % ours, number % theirs if theirs else number
