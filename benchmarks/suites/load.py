"""Loading a safetensors checkpoint of 1 GiB with 300 tensors into host memory: warm (in the page
cache) and cold (taken out of it; a hypervisor may still have it).

Each load is a fresh fork. It ends when all tensors are there and a byte of every page was read.
`own mib` is private memory that it added: loaders that map have none, and do less.
"""

from __future__ import annotations

from harness.catalog import Contender, Sizes, Suite, Work

LOADER = "contenders.loads:Loader"


def make(sizes: Sizes) -> Suite:
    """The suite in these sizes."""
    size = sizes.checkpoint
    works = tuple(
        Work(
            name=name,
            text=f"{size >> 20} MiB in {sizes.tensors} tensors, {words}",
            size=size,
            group=name,
            about={"count": sizes.tensors},
            is_compared=False,
            fresh=size + size // 4,
        )
        for name, words in (("warm", "in the page cache"), ("cold", "not in the page cache"))
    )
    return Suite(
        name="load",
        text="A checkpoint from disk",
        works=works,
        contenders=(*OURS, *RAW, *PEERS),
        source_bytes=1 << 20,
        target_bytes=1 << 20,
        unlisted=(
            ("instanttensor 0.2.2", "it only loads to CUDA devices"),
            ("kvikio 26.10", "it needs a CUDA driver"),
        ),
    )


def loader(module: str, name: str) -> dict[str, object]:
    """The options of a contender that is a loader."""
    return {"loader": f"contenders.{module}:{name}"}


OURS = (
    Contender("tensorcast", "ours", "disk", LOADER, options=loader("ours_loaders", "copied")),
    Contender("tensorcast, mapped", "ours", "cache", LOADER,
              options=loader("ours_loaders", "mapped"), note="a mapping, nothing is copied"),
)  # fmt: skip

RAW = (
    Contender("raw preadv, 2 threads", "reference", "disk", LOADER,
              options=loader("raw_loaders", "preadv_2")),
    Contender("raw O_DIRECT, 1 thread", "reference", "disk", LOADER, works=("cold",),
              options=loader("raw_loaders", "direct_1")),
    Contender("raw O_DIRECT, 4 threads", "reference", "disk", LOADER, works=("cold",),
              options=loader("raw_loaders", "direct_4")),
    Contender("raw mmap", "reference", "cache", LOADER, options=loader("raw_loaders", "mapped"),
              note="a mapping, nothing is copied"),
)  # fmt: skip

PEERS = (
    Contender("safetensors", "peer", "cache", LOADER, "loaders",
              options=loader("peer_loaders", "safetensors_mapped"),
              note="a mapping, nothing is copied"),
    Contender("safetensors, copied", "peer", "disk", LOADER, "loaders",
              options=loader("peer_loaders", "safetensors_copied")),
    Contender("fastsafetensors", "peer", "disk", LOADER, "loaders",
              options=loader("peer_loaders", "fastsafetensors")),
    Contender("runai-model-streamer", "peer", "disk", LOADER, "loaders",
              options=loader("peer_loaders", "runai")),
)  # fmt: skip
