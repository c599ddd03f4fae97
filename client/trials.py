"""The trials behind `tcctl bench`: how fast a user's own cluster is, through the public SDK.

A trial makes its own artifact and its own space of KV blocks, and takes both away again, also when
it is interrupted. It moves random bytes, so it never meets content that is there already.
"""

from __future__ import annotations

import os
import secrets
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from tensorcast.client.baselines import time_copy, time_read, time_send, time_write
from tensorcast.client.files import find_files
from tensorcast.client.loading import load
from tensorcast.schema.blocks import pack_keys
from tensorcast.schema.errors import Corrupt, InvalidArgument, NotFound, OutOfCapacity
from tensorcast.schema.ids import Tier

if TYPE_CHECKING:
    import torch

    from tensorcast.client.sync import Client
    from tensorcast.schema.api import NodeBlocks

KV_BYTES_MAX: Final = 64 << 20
"""What the blocks of one size have together in a KV trial, at most."""
KINDS: Final = ("put", "get", "share", "p2p", "kv", "load")
TENSORS: Final = 64
BATCH: Final = 32
BLOCKS: Final = {"64 KiB": 64 << 10, "2 MiB": 2 << 20}
HIGH_MARK: Final = 0.95
"""Nodes evict in the background when more than this share of their memory is taken, unless they
were told otherwise."""
SEGMENT_BYTES: Final = 2 << 20
COPIES: Final = 2
GONE_S_MAX: Final = 30.0
POLL_S: Final = 0.02
ALIGNMENT: Final = 1 << 12
LABEL: Final = "tcctl-bench"

Report = Callable[[str], None]


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What one trial found. `seconds` is the median of the rounds; the baseline is a bare loop of
    this machine that moves as many bytes ("" when there is none), `ratio` ours against it."""

    what: str
    bytes: int
    rounds: int
    seconds: float
    seconds_min: float
    seconds_max: float
    bytes_per_s: float
    baseline: str
    baseline_bytes_per_s: float
    ratio: float


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be tried: `kinds` of KINDS, `to` the node of a p2p trial, `path` the checkpoint of
    a load, `kv_bytes` what the blocks of a KV trial have in all."""

    kinds: tuple[str, ...]
    size_bytes: int
    rounds: int
    to: str | None = None
    path: Path | None = None
    force: bool = False
    kv_bytes: int = KV_BYTES_MAX


def limit_blocks(size_bytes: int) -> int:
    """What the blocks of a KV trial have in all, for trials of this size: one block at least."""
    return min(KV_BYTES_MAX, max(size_bytes, *BLOCKS.values()))


class Times:
    """Seconds by what was timed, in the order of their first time; `baselines` likewise."""

    def __init__(self) -> None:
        self.own: dict[str, list[float]] = {}
        self.baselines: dict[str, tuple[str, list[float]]] = {}
        self.sizes: dict[str, int] = {}

    def add(self, what: str, size_bytes: int, seconds: float) -> None:
        """Notes one round of ours."""
        self.sizes[what] = size_bytes
        self.own.setdefault(what, []).append(seconds)

    def compare(self, what: str, baseline: str, seconds: float) -> None:
        """Notes one round of what ours is compared with."""
        self.baselines.setdefault(what, (baseline, []))[1].append(seconds)

    def trials(self) -> tuple[Trial, ...]:
        """What came of it."""
        return tuple(self._trial(what) for what in self.own)

    def _trial(self, what: str) -> Trial:
        found, size_bytes = self.own[what], self.sizes[what]
        name, others = self.baselines.get(what, ("", []))
        seconds = statistics.median(found)
        baseline_s = statistics.median(others) if others else 0.0
        return Trial(
            what=what,
            bytes=size_bytes,
            rounds=len(found),
            seconds=round(seconds, 6),
            seconds_min=round(min(found), 6),
            seconds_max=round(max(found), 6),
            bytes_per_s=round(size_bytes / seconds, 1),
            baseline=name,
            baseline_bytes_per_s=round(size_bytes / baseline_s, 1) if baseline_s else 0.0,
            ratio=round(baseline_s / seconds, 3) if baseline_s else 0.0,
        )


def run_trials(
    client: Client, wanted: Wanted, report: Report = lambda _: None
) -> tuple[Trial, ...]:
    """Runs them in turns with their baselines, round by round, and checks every byte that comes
    back. Takes away what it made.

    Raises OutOfCapacity, unless forced, where something would have to be evicted; InvalidArgument;
    Corrupt when bytes are wrong; and what the SDK raises.
    """
    check_wanted(wanted)
    target = find_target(client, wanted) if "p2p" in wanted.kinds else None
    if not wanted.force:
        check_room(client, wanted, target)
    times = Times()
    if {"put", "get", "share", "p2p"} & set(wanted.kinds):
        try_artifacts(client, wanted, target, times, report)
    if "kv" in wanted.kinds:
        try_blocks(client, wanted, times, report)
    if "load" in wanted.kinds and wanted.path is not None:
        try_load(wanted.path, wanted.rounds, times, report)
    return times.trials()


def check_wanted(wanted: Wanted) -> None:
    """Raises InvalidArgument for what makes no sense."""
    unknown = [kind for kind in wanted.kinds if kind not in KINDS]
    if unknown:
        raise InvalidArgument(f"{unknown[0]!r} is no trial.", hint=f"Choose of {', '.join(KINDS)}.")
    if "load" in wanted.kinds and wanted.path is None:
        raise InvalidArgument(
            "A load needs a checkpoint.", hint="Name a file or a folder with --path."
        )
    if wanted.size_bytes < TENSORS * ALIGNMENT:
        raise InvalidArgument(
            f"{wanted.size_bytes} bytes are too few to time.", hint="Use 1 MiB or more."
        )


def find_target(client: Client, wanted: Wanted) -> str:
    """The node that a p2p trial moves bytes to. Raises InvalidArgument."""
    here = client.context.default_node
    others = [n.node for n in client.api.nodes() if n.state == "up" and n.node != here]
    if wanted.to is None and others:
        return others[0]
    if wanted.to in others and wanted.to is not None:
        return wanted.to
    raise InvalidArgument(
        f"There is no other node {wanted.to!r} that is up."
        if wanted.to
        else "There is no other node that is up.",
        hint="`tcctl node ls` shows the nodes.",
    )


def check_room(client: Client, wanted: Wanted, target: str | None) -> None:
    """Raises OutOfCapacity where a trial would make a node evict, be it in the background because
    the high mark is passed. Counts what is taken at the peak of a round."""
    here = client.context.default_node
    stats = {one.node: one for one in client.api.block_stats()}
    for node in filter(None, (here, target)):
        info = client.api.node(node)
        blocks = stats.get(info.node)
        taken = info.tiers[Tier.DRAM].used
        if node == here:
            taken = max(taken, client.stats().used_bytes)
        needed = needed_bytes(wanted, is_target=node == target)
        if node == here and "kv" in wanted.kinds:
            needed = max(needed, needed_slab_bytes(wanted, blocks))
        room = int(HIGH_MARK * info.tiers[Tier.DRAM].capacity) - taken
        check_fits(node, "memory", room, needed)
        if node == here and "kv" in wanted.kinds and blocks:
            free = blocks.counters.get("free_bytes", room)
            check_fits(node, "memory for KV blocks", free, needed_block_bytes(wanted))


def needed_bytes(wanted: Wanted, *, is_target: bool) -> int:
    """What the artifacts of a trial take of a node's memory at the peak. Here memory that was just
    read or removed may not be free yet when the next artifact comes; a target has one replica."""
    if not {"put", "get", "share", "p2p"} & set(wanted.kinds):
        return 0
    segment_bytes = -(-wanted.size_bytes // SEGMENT_BYTES) * SEGMENT_BYTES
    return segment_bytes if is_target else COPIES * segment_bytes


def needed_block_bytes(wanted: Wanted) -> int:
    """What blocks take of the memory for KV blocks: a slab that has just begun for each of the
    sizes, too. They are evicted before those of the other size come."""
    return wanted.kv_bytes + wanted.kv_bytes // 8 * len(BLOCKS)


def needed_slab_bytes(wanted: Wanted, blocks: NodeBlocks | None) -> int:
    """By how much the slabs of a node may grow: blocks of each size have slabs of their own, and
    all of them together no more than the budget, which is what is free and what is held."""
    wanted_bytes = (wanted.kv_bytes + wanted.kv_bytes // 8) * len(BLOCKS)
    if blocks is None or "free_bytes" not in blocks.counters:
        return wanted_bytes
    held = blocks.tiers[Tier.DRAM].bytes if Tier.DRAM in blocks.tiers else 0
    left = blocks.counters["free_bytes"] + held - blocks.counters.get("slab_bytes", 0)
    return min(wanted_bytes, max(0, left))


def check_fits(node: str, what: str, room_bytes: int, needed_bytes: int) -> None:
    """Raises OutOfCapacity unless it fits."""
    if max(room_bytes, 0) < needed_bytes:
        raise OutOfCapacity(
            f"Node {node} has {max(room_bytes, 0) >> 20} MiB of {what} free; the trial needs "
            f"{-(-needed_bytes >> 20)} MiB.",
            hint="Choose a smaller --size, other trials (put, get, share, p2p, kv), or let it "
            "evict with --force.",
            node=node,
        )


# ---- artifacts ---------------------------------------------------------------------------------


def try_artifacts(
    client: Client, wanted: Wanted, target: str | None, times: Times, report: Report
) -> None:
    """put, get, put of `client.empty`, and replicate, each round with an artifact of its own."""
    token = secrets.token_hex(8)
    try:
        try_rounds(client, wanted, target, times, report, token)
    finally:
        sweep(client, token)


def sweep(client: Client, token: str) -> None:
    """Removes what an interrupted put has left: artifacts with the label of this run."""
    for artifact in client.api.artifacts():
        if artifact.labels.get(LABEL) == token and artifact.state != "removed":
            remove(client, artifact.id)


def try_rounds(
    client: Client,
    wanted: Wanted,
    target: str | None,
    times: Times,
    report: Report,
    token: str,
) -> None:
    """All rounds."""
    whole = make_bytes(wanted.size_bytes)
    place = bytearray(wanted.size_bytes)
    wants = {"put", "get"} if "share" in wanted.kinds else set()
    wants |= set(wanted.kinds)
    for turn in range(wanted.rounds + 1):  # the first one warms up
        report(f"round {turn} of {wanted.rounds}" if turn else "warming up")
        kept = times if turn else Times()
        tensors = split(whole, turn)
        what = "put" if "put" in wants else ""
        with putting(client, tensors, kept, what, token) as artifact:
            if "get" in wants:
                begun = time.perf_counter()
                found = client.get(artifact)
                kept.add("get", wanted.size_bytes, time.perf_counter() - begun)
                compare_tensors(found, tensors)
                del found  # or its memory is not free in the next round
            if target is not None:
                begun = time.perf_counter()
                client.replicate(artifact, to=[target]).wait()
                kept.add(f"p2p to {target}", wanted.size_bytes, time.perf_counter() - begun)
        if "share" in wants:
            try_empty(client, tensors, kept, token)
        source = whole.numpy().data
        kept.compare("put", "write into fresh memory", time_write(source))
        kept.compare("get", "copy in memory", time_copy(source, memoryview(place)))
        if target is not None:
            sent_s = time_send(source, memoryview(place))
            kept.compare(f"p2p to {target}", "sendfile on the loopback interface", sent_s)


def make_bytes(size_bytes: int) -> torch.Tensor:
    """Random bytes."""
    import torch

    words = torch.empty(size_bytes // 8, dtype=torch.int64)
    generator = torch.Generator().manual_seed(secrets.randbits(60))
    return words.random_(generator=generator).view(torch.uint8)


def split(whole: torch.Tensor, turn: int) -> dict[str, torch.Tensor]:
    """The bytes as tensors of one artifact; each turn has other content."""
    import torch

    whole[:8] = torch.tensor(list((turn + 1).to_bytes(8, "little")), dtype=torch.uint8)
    parts = whole.chunk(TENSORS)
    return {f"bench.{number:02}": part for number, part in enumerate(parts)}


@contextmanager
def putting(
    client: Client, tensors: dict[str, torch.Tensor], times: Times, what: str, token: str
) -> Iterator[str]:
    """An artifact of these tensors, gone again at the end; its put is timed as `what`."""
    begun = time.perf_counter()
    artifact = client.put(tensors, kind="generic", labels={LABEL: token})
    took_s = time.perf_counter() - begun
    try:
        if what:
            times.add(what, sum(tensor.nbytes for tensor in tensors.values()), took_s)
        yield artifact.id
    finally:
        remove(client, artifact.id)


def remove(client: Client, artifact: str) -> None:
    """Removes an artifact and waits until the memory of its replicas is free again."""
    with suppress(NotFound):
        client.api.remove_artifact(artifact, force=True)
    deadline = time.monotonic() + GONE_S_MAX
    while time.monotonic() < deadline:
        try:
            replicas = client.api.artifact(artifact).replicas
        except NotFound:
            return
        if all(replica.state in ("gone", "lost") for replica in replicas):
            return
        time.sleep(POLL_S)


def try_empty(client: Client, tensors: dict[str, torch.Tensor], times: Times, token: str) -> None:
    """A put of tensors that were made in the mover's memory."""
    what = "put of client.empty"
    made = client.empty(tensors)
    for name, tensor in tensors.items():
        made[name].copy_(tensor)
    next(iter(made.values()))[-1] ^= 255  # other content than that of the usual put
    begun = time.perf_counter()
    artifact = client.put(made, kind="generic", labels={LABEL: token})
    took_s = time.perf_counter() - begun
    try:
        artifact.wait()
        times.add(what, sum(tensor.nbytes for tensor in tensors.values()), took_s)
    finally:
        remove(client, artifact.id)


def compare_tensors(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Raises Corrupt unless they are the same, bit for bit."""
    import torch

    for name, tensor in expected.items():
        if name not in found or not torch.equal(found[name], tensor):
            raise Corrupt(f"Tensor {name!r} came back with other bytes than were put.")


# ---- KV blocks ---------------------------------------------------------------------------------


def try_blocks(client: Client, wanted: Wanted, times: Times, report: Report) -> None:
    """Blocks of both sizes in batches: put, got into memory, got as views."""
    space = f"bench-{secrets.token_hex(4)}"
    try:
        for turn in range(wanted.rounds + 1):
            report(f"blocks, round {turn} of {wanted.rounds}" if turn else "blocks, warming up")
            for name, size in BLOCKS.items():
                source = make_bytes(wanted.kv_bytes // size * size)
                kept = times if turn else Times()
                try_block_round(client, space, name, source.numpy().data, size, kept)
                client.evict_blocks(space=space)
    finally:
        client.evict_blocks(space=space)


def try_block_round(
    client: Client, space: str, name: str, source: memoryview, size: int, times: Times
) -> None:
    """One round with blocks of one size."""
    total = len(source)
    target = memoryview(bytearray(total))
    keys = pack_keys(space, (os.urandom(16) for _ in range(total // size)))
    places = [slice(at, at + size * BATCH) for at in range(0, total, size * BATCH)]

    def batches(call: Callable[[list[bytes], Sequence[memoryview]], object]) -> float:
        took_s = 0.0
        for number, place in enumerate(places):
            part = keys[number * BATCH : (number + 1) * BATCH]
            memory = (target if call is get else source)[place]
            views = [memory[at : at + size] for at in range(0, len(memory), size)]
            begun = time.perf_counter()
            call(part, views)
            took_s += time.perf_counter() - begun
        return took_s

    def put(part: list[bytes], views: Sequence[memoryview]) -> None:
        client.put_blocks(part, views)

    def get(part: list[bytes], views: Sequence[memoryview]) -> None:
        if not all(client.get_blocks(part, into=views)):
            raise OutOfCapacity("Blocks were evicted before they were read.")

    def view(part: list[bytes], _: Sequence[memoryview]) -> None:
        client.get_blocks(part)

    times.add(f"kv put {name}", total, batches(put))
    times.add(f"kv get {name}", total, batches(get))
    if target != source:
        raise Corrupt("KV blocks came back with other bytes than were put.")
    times.add(f"kv view {name}", total, batches(view))
    for what in (f"kv put {name}", f"kv get {name}"):
        times.compare(what, "copy in memory", time_copy(source, target))


# ---- checkpoints -------------------------------------------------------------------------------


def try_load(path: Path, rounds: int, times: Times, report: Report) -> None:
    """`tc.load` of a checkpoint that is in the page cache, copied and mapped."""
    files = [place for place in find_files([path]) if isinstance(place, Path)]
    size_bytes = sum(file.stat().st_size for file in files)
    for turn in range(rounds + 1):
        report(f"load, round {turn} of {rounds}" if turn else "load, warming up")
        kept = times if turn else Times()
        for mode, what in (("copy", "load, copied"), ("map", "load, mapped")):
            begun = time.perf_counter()
            found = load(path, mode="copy" if mode == "copy" else "map")
            kept.add(what, size_bytes, time.perf_counter() - begun)
            del found
        kept.compare("load, copied", "preadv, 2 threads", sum(time_read(file) for file in files))
