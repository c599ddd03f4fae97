"""KV blocks: one process puts, another gets, 4096 blocks of 64 KiB and 256 of 2 MiB in batches of
32, and single blocks of 64 KiB one by one.

A put is timed in the producer, a get in the consumer, each call by itself; keys and lists are made
before. Blocks are found by key except where a system has none (Mooncake TE and NIXL read places
that the reader knows already, and have no put). p50 and p99 are those of a call by its blocks.
"""

from __future__ import annotations

from harness.catalog import Contender, Sizes, Suite, Work

KIB, MIB = 1 << 10, 1 << 20
BATCH = 32
CONSUMER = "contenders.blocks:Consumer"
PUTS_AND_GETS = ("put 64 KiB", "get 64 KiB", "put 2 MiB", "get 2 MiB", "single 64 KiB")
GETS = ("get 64 KiB", "get 2 MiB", "single 64 KiB")
UCX_TCP = {"UCX_TLS": "tcp,self"}


def make(sizes: Sizes) -> Suite:
    """The suite in these sizes."""
    works = make_works(sizes)
    largest = max(work.size for work in works)
    return Suite(
        name="kv",
        text="KV blocks between two processes",
        works=works,
        contenders=(*OURS, *RAW, *PEERS),
        source_bytes=largest,
        target_bytes=largest,
        unlisted=(("infinistore 0.2.35", "its server needs an RDMA device, for TCP clients too"),),
    )


def make_works(sizes: Sizes) -> tuple[Work, ...]:
    """Puts, gets and views of both sizes, and single gets."""
    found = []
    for name, block, count in (
        ("64 KiB", 64 * KIB, sizes.blocks_small),
        ("2 MiB", 2 * MIB, sizes.blocks_large),
    ):
        for kind, words in (("put", "put"), ("get", "got into memory"), ("view", "got as views")):
            about = {"blocks": count, "block": block, "batch": min(BATCH, count), "kind": kind}
            found.append(
                Work(
                    name=f"{kind} {name}",
                    text=f"{count} blocks of {name} {words} in batches of {min(BATCH, count)}",
                    size=count * block,
                    group=name,
                    about={**about, "space": name},
                    is_compared=kind == "get",
                )
            )
    about = {"blocks": sizes.singles, "block": 64 * KIB, "batch": 1, "kind": "get"}
    found.append(
        Work(
            name="single 64 KiB",
            text=f"{sizes.singles} blocks of 64 KiB got one by one",
            size=sizes.singles * 64 * KIB,
            group="single",
            about={**about, "space": "single"},
        )
    )
    return tuple(found)


def store(module: str, name: str, **more: object) -> dict[str, object]:
    """The options of a contender that is a store."""
    return {"store": f"contenders.{module}:{name}", **more}


OURS = (
    Contender("tensorcast", "ours", "memory", CONSUMER, options=store("ours_store", "OneNode")),
    Contender("tensorcast, other node", "ours", "tcp", CONSUMER, works=GETS,
              options=store("ours_store", "TwoNodes"), note="the blocks are on another mover"),
)  # fmt: skip

RAW = (
    Contender("raw shared memory", "reference", "memory", CONSUMER,
              options=store("raw_store", "RawMemory")),
    Contender("raw tcp", "reference", "tcp", CONSUMER, works=GETS,
              options=store("raw_store", "RawTcp")),
)  # fmt: skip

PEERS = (
    Contender("redis, tcp", "peer", "tcp", CONSUMER, "messages", ("debian",), works=PUTS_AND_GETS,
              options=store("redis_store", "Redis", is_unix=False)),
    Contender("redis, unix socket", "peer", "memory", CONSUMER, "messages", ("debian",),
              works=PUTS_AND_GETS, options=store("redis_store", "Redis", is_unix=True)),
    Contender("lmcache server", "peer", "tcp", CONSUMER, "lmcache", works=PUTS_AND_GETS,
              options=store("lmcache_store", "LmCache")),
    Contender("mooncake store", "peer", "tcp", CONSUMER, "mooncake", ("debian",),
              works=PUTS_AND_GETS, options=store("mooncake_store", "MooncakeStore")),
    Contender("mooncake te", "peer", "tcp", "contenders.mooncake_engine:Blocks", "mooncake",
              ("debian",), works=GETS, rests=True),
    Contender("nixl tcp", "peer", "tcp", "contenders.nixl_agent:Blocks", "nixl", works=GETS,
              environ=UCX_TCP, rests=True),
    Contender("nixl default", "peer", "memory", "contenders.nixl_agent:Blocks", "nixl", works=GETS,
              rests=True, note="UCX takes shared memory here"),
    Contender("ray", "peer", "memory", "contenders.ray_actors:Blocks", "ray"),
    Contender("torchstore, shared memory", "peer", "memory", "contenders.torchstore_mesh:Blocks",
              "torchstore", options={"transport": "SharedMemory"}, works=PUTS_AND_GETS[:4]),
    Contender("torchstore, gloo", "peer", "tcp", "contenders.torchstore_mesh:Blocks", "torchstore",
              options={"transport": "Gloo"}, works=PUTS_AND_GETS[:4]),
)  # fmt: skip
