"""Weights from one process to another: 1 GiB as 300 tensors and as one, DRAM to DRAM over loopback.

Timed is the move alone, on connections that are there, into memory that was touched before. Ours
twice: `tensorcast` is the whole public path (`client.get` on a node that has to pull the artifact
from the other node: request, control plane, pull, every chunk verified, mapping), `tensorcast
pull` is the transport alone, as a mover drives it.
"""

from __future__ import annotations

from harness.catalog import Contender, Sizes, Suite, Work

UCX_TCP = {"UCX_TLS": "tcp,self"}
TCP = "tcp"


def make(sizes: Sizes) -> Suite:
    """The suite in these sizes."""
    mib = sizes.transfer >> 20
    return Suite(
        name="p2p",
        text="Weights between two processes over loopback TCP",
        works=tuple(
            Work(
                name=f"{count} tensors" if count > 1 else "1 tensor",
                text=f"{mib} MiB as {count} tensor{'s' if count > 1 else ''}",
                size=sizes.transfer,
                group=str(count),
                about={"count": count},
            )
            for count in (sizes.tensors, 1)
        ),
        contenders=(*OURS, *RAW, *iperf(f"{sizes.tensors} tensors"), *PEERS),
        source_bytes=sizes.transfer,
        target_bytes=sizes.transfer,
        unlisted=(
            ("official TensorCast 0.1.1", "its wheel needs CUDA; it only starts with stand-ins"),
        ),
    )


OURS = (
    Contender("tensorcast", "ours", TCP, "contenders.ours_get:Reader", is_compared=False,
              note="client.get on the other node: control plane, pull, verification, mapping"),
    Contender("tensorcast pull", "ours", TCP, "contenders.ours_pull:Puller",
              options={"verify": True}, note="transport alone, every chunk verified"),
    Contender("tensorcast pull, no checksums", "ours", TCP, "contenders.ours_pull:Puller",
              options={"verify": False}, note="transport alone"),
)  # fmt: skip

RAW = tuple(
    Contender(
        name=f"raw sendfile, {streams} x {congestion or 'default'}",
        kind="reference",
        over=TCP,
        worker="contenders.raw_tcp:Receiver",
        options={"streams": streams, "congestion": congestion},
        note="bare loop: no protocol, no checksum",
    )
    for streams, congestion in ((1, ""), (1, "cubic"), (2, "cubic"))
)

PEERS = (
    Contender("mooncake te read", "peer", TCP, "contenders.mooncake_engine:Engine", "mooncake",
              needs=("debian",), options={"mode": "read"}, rests=True),
    Contender("mooncake te write", "peer", TCP, "contenders.mooncake_engine:Engine", "mooncake",
              needs=("debian",), options={"mode": "write"}, rests=True),
    Contender("nixl tcp read", "peer", TCP, "contenders.nixl_agent:Agent", "nixl",
              options={"mode": "READ"}, environ=UCX_TCP, rests=True),
    Contender("nixl tcp write", "peer", TCP, "contenders.nixl_agent:Agent", "nixl",
              options={"mode": "WRITE"}, environ=UCX_TCP, rests=True),
    Contender("nixl default read", "peer", "memory", "contenders.nixl_agent:Agent", "nixl",
              options={"mode": "READ"}, rests=True, note="UCX takes shared memory here"),
    Contender("gloo", "peer", TCP, "contenders.gloo:Receiver"),
    Contender("ucxx", "peer", TCP, "contenders.ucxx_tags:Receiver", "ucxx", environ=UCX_TCP,
              rests=True),
    Contender("torchstore, gloo", "peer", TCP, "contenders.torchstore_mesh:Tensors", "torchstore",
              options={"transport": "Gloo"}, note="get in place from the producer's volume"),
    Contender("torchstore, shared memory", "peer", "memory", "contenders.torchstore_mesh:Tensors",
              "torchstore", options={"transport": "SharedMemory"}),
    Contender("zeromq", "peer", TCP, "contenders.zeromq:Puller", "messages"),
)  # fmt: skip


def iperf(work: str) -> tuple[Contender, ...]:
    """One stream in the settings that an engineer tries; it knows no tensors, so once is enough."""
    settings = {
        "iperf3": [],
        "iperf3 -C cubic": ["-C", "cubic"],
        "iperf3 -C cubic -Z": ["-C", "cubic", "-Z"],
    }
    return tuple(
        Contender(
            name=name,
            kind="reference",
            over=TCP,
            worker="contenders.iperf:Iperf",
            needs=("debian",),
            works=(work,),
            is_compared=False,
            options={"arguments": arguments},
            note="one stream for one second; bytes are discarded, not compared",
        )
        for name, arguments in settings.items()
    )
