"""The table of goals: what the data plane has to reach on the machine that it runs on."""

from __future__ import annotations

from harness.goals import Goal, Measure

IPERF = ("iperf3", "iperf3 -C cubic", "iperf3 -C cubic -Z")
RAW_TCP = ("raw sendfile, 1 x default", "raw sendfile, 1 x cubic", "raw sendfile, 2 x cubic")
KV_ASPECTS = ("rate", "cpu", "p50")
BLOCKS = {"64 KiB": "4096 blocks of 64 KiB", "2 MiB": "256 blocks of 2 MiB"}

P2P = (
    Goal("p2p", "300 tensors", "1 GiB as 300 tensors over TCP, verified, against iperf3",
         "tensorcast", 1.0, references=IPERF, ahead_over=("tcp",)),
    Goal("p2p", "300 tensors", "the same, the transport alone",
         "tensorcast pull", 1.0, references=IPERF, ahead_over=("tcp",)),
    Goal("p2p", "300 tensors", "the transport without checksums, against a raw sendfile loop",
         "tensorcast pull, no checksums", 0.95, references=RAW_TCP),
)  # fmt: skip

KV = tuple(
    goal
    for size, text in BLOCKS.items()
    for goal in (
        Goal("kv", f"put {size}", f"put of {text} on one node, against a raw copy", "tensorcast",
             0.8, references=("raw shared memory",), ahead_over=("memory", "tcp"),
             aspects=KV_ASPECTS),
        Goal("kv", f"get {size}", f"get (copied) of {text} on one node, against a raw copy",
             "tensorcast", 0.8, references=("raw shared memory",), ahead_over=("memory", "tcp"),
             aspects=KV_ASPECTS),
        Goal("kv", f"view {size}", f"get (views) of {text} on one node, against raw views",
             "tensorcast", 0.8, references=("raw shared memory",)),
        Goal("kv", f"get {size}", f"get of {text} over TCP, against a raw TCP loop",
             "tensorcast, other node", 0.8, references=("raw tcp",), ahead_over=("tcp",),
             aspects=KV_ASPECTS),
    )
)  # fmt: skip

LATENCY = (
    Goal("kv", "single 64 KiB", "one block of 64 KiB on one node, p50", "tensorcast", 80,
         Measure.BLOCK),
    Goal("kv", "single 64 KiB", "one block of 64 KiB over TCP, p50", "tensorcast, other node", 120,
         Measure.BLOCK),
    Goal("kv", "get 64 KiB", "32 blocks of 64 KiB at once on one node, p50 a block", "tensorcast",
         15, Measure.BLOCK),
    Goal("kv", "get 64 KiB", "32 blocks of 64 KiB at once over TCP, p50 a block",
         "tensorcast, other node", 40, Measure.BLOCK),
)  # fmt: skip

SHARE = (
    Goal("share", "get 1 GiB", "get of 1 GiB on the node", "tensorcast", 5, Measure.MILLISECONDS),
    Goal("large", "get 8 GiB", "get of 8 GiB on the node", "tensorcast", 5, Measure.MILLISECONDS),
    Goal("large", "get 8 GiB", "memory of its own that the reader of 8 GiB gained",
         "tensorcast", 50, Measure.FACT, fact="own_mib", unit="MiB"),
    Goal("share", "put 1 GiB", "put of 300 tensors, 1 GiB, against one pwrite into a fresh memfd",
         "tensorcast, fresh memory", 1.1, Measure.MILLISECONDS, references=("raw pwrite",),
         ahead_over=("memory",)),
    Goal("share", "put 1 GiB", "put of 1 GiB of tensors made by client.empty",
         "tensorcast, client.empty", 20, Measure.MILLISECONDS),
)  # fmt: skip

LOAD = (
    Goal("load", "warm", "warm load of 1 GiB into private memory, against a two-thread preadv loop",
         "tensorcast", 0.8, references=("raw preadv, 2 threads",)),
    Goal("load", "warm", "warm load of 1 GiB, mapped", "tensorcast, mapped", 50,
         Measure.MILLISECONDS),
    Goal("load", "cold", "cold load of 1 GiB, against the best raw cold read", "tensorcast", 0.95,
         references=("raw preadv, 2 threads", "raw O_DIRECT, 1 thread", "raw O_DIRECT, 4 threads",
                     "raw mmap"),
         ahead_over=("disk",)),
)  # fmt: skip

BROADCAST = (
    Goal("broadcast", "4 receivers", "256 MiB to 4 hosts at 1 Gbit/s, in transfers to one",
         "tensorcast", 1.05, Measure.FACT, fact="ratio"),
    Goal("broadcast", "8 receivers", "256 MiB to 8 hosts at 1 Gbit/s, in transfers to one",
         "tensorcast", 1.10, Measure.FACT, fact="ratio"),
    Goal("broadcast", "3 sources", "a pull from 3 sources, in time of one source", "tensorcast",
         1 / 2.7, Measure.FACT, fact="ratio"),
)  # fmt: skip

GOALS = (*P2P, *KV, *LATENCY, *SHARE, *LOAD, *BROADCAST)
