"""A state dict of 300 tensors on one node: an owner publishes it, another process gets it.

A get ends when all tensors are there as objects; every byte is compared after. `own mib` is the
memory that only the reader has and that the get added. A put starts from ordinary tensors (in
`client.empty` from tensors that were made there and filled, which is not timed) and ends when
`put` returns; what goes on after it is in its CPU.
"""

from __future__ import annotations

from harness.catalog import Contender, Sizes, Suite, Work

READER = "contenders.shares:Reader"
FIRST = ("get 1 GiB", "put 1 GiB")


def make(sizes: Sizes) -> Suite:
    """The suite in these sizes."""
    return Suite(
        name="share",
        text="A state dict shared on one node",
        works=(
            make_work("put 1 GiB", "put", sizes.share, sizes.tensors),
            make_work("get 1 GiB", "get", sizes.share, sizes.tensors),
        ),
        contenders=(*OURS, *RAW, *PEERS),
        source_bytes=sizes.share,
        target_bytes=sizes.share,
    )


def make_work(name: str, kind: str, size: int, tensors: int) -> Work:
    """A put or a get of one size; puts and gets of a size follow each other."""
    return Work(
        name=name,
        text=f"{kind} of {size >> 20} MiB as {tensors} tensors",
        size=size,
        group=name[4:],
        about={"kind": kind, "count": tensors},
        is_compared=False,
        fresh=size + size // 4 if kind == "put" else 0,
    )


def way(module: str, name: str) -> dict[str, object]:
    """The options of a contender that is a way to share."""
    return {"way": f"contenders.{module}:{name}"}


OURS = (
    Contender("tensorcast", "ours", "memory", READER, works=FIRST,
              options=way("ours_share", "OneNode"), note="into memory that was used before"),
    Contender("tensorcast, fresh memory", "ours", "memory", READER, works=("put 1 GiB",),
              options=way("ours_share", "OneNodeFresh"), note="as the first put of a node"),
    Contender("tensorcast, client.empty", "ours", "memory", READER, works=FIRST,
              options=way("ours_share", "OneNodeEmpty")),
)  # fmt: skip

RAW = (
    Contender("raw memfd", "reference", "memory", READER, works=FIRST,
              options=way("share_ways", "RawMemfd"), note="300 pwrites; passed and mapped"),
    Contender("raw pwrite", "reference", "memory", READER, works=("put 1 GiB",),
              options=way("share_ways", "RawPwrite"), note="one pwrite into a fresh memfd"),
)  # fmt: skip

PEERS = (
    Contender("torch shared memory", "peer", "memory", READER, works=FIRST,
              options=way("share_ways", "TorchShared")),
    Contender("safetensors on /dev/shm", "peer", "memory", READER, works=FIRST,
              options=way("share_ways", "Safetensors")),
    Contender("ray", "peer", "memory", "contenders.ray_actors:Share", "ray", works=FIRST),
)  # fmt: skip
