"""A state dict of 8 GiB got on one node: a get does not depend on the size.

A suite of its own, so that the processes of the others are gone: the segment alone is 8 GiB.
"""

from __future__ import annotations

from harness.catalog import Contender, Sizes, Suite
from harness.machine import memory_bytes
from suites.share import READER, make_work, way

WORK = "get 8 GiB"
GIB = 1 << 30
ROOM = 1.9
"""Memory that must be free, in the size of what is got: the segment, and all the rest."""


def make(sizes: Sizes) -> Suite:
    """The suite in these sizes; without its work when there is no memory for it."""
    has_room = memory_bytes("MemAvailable") > ROOM * sizes.share_large
    work = make_work(WORK, "get", sizes.share_large, sizes.tensors)
    reason = f"it needs {ROOM * sizes.share_large / GIB:.0f} GiB free"
    return Suite(
        name="large",
        text="A large state dict shared on one node",
        works=(work,) if has_room else (),
        contenders=(OURS,),
        source_bytes=sizes.share,
        target_bytes=sizes.share,
        unlisted=() if has_room else ((WORK, reason),),
    )


OURS = Contender(
    "tensorcast",
    "ours",
    "memory",
    READER,
    works=(WORK,),
    options=way("ours_share", "OneNodeEmpty"),
    note="made by client.empty",
)
