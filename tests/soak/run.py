"""Many random cycles over a small cluster whose processes are killed at random, and what must be
true of it all the time and after it.

`.venv/bin/python tests/soak/run.py --cycles 10000 --seed 1` repeats a run's choices (what meets
what in time is up to the machine). Prints the seed, what was done, and the most that was taken.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from mover_nodes import MIB, MoverNode, Observer, observing
from servers import NatsServer
from soak.watch import Watch, leftovers, look
from soak.worker import KEYS, WORKERS, WRONG, content_of, key_of
from tensorcast.movers.core.holdings import PRESENT
from tensorcast.schema.aggregates.artifact import ArtifactStatus
from tensorcast.schema.aggregates.key import KeyStatus
from tensorcast.schema.aggregates.replica import ReplicaStatus
from tensorcast.schema.cluster import ClusterView, project
from tensorcast.schema.commands import (
    AcquireLease,
    Command,
    PinArtifact,
    ReleaseLease,
    RemoveArtifact,
    RemoveKey,
    RequestReplicas,
    UnpinArtifact,
)
from tensorcast.schema.errors import OutOfCapacity, TensorCastError
from tensorcast.schema.ids import ArtifactId, Key, LeaseId, NodeId, Tier

DRAM_BYTES = 20 * MIB
DISK_BYTES = 120 * MIB
STEP_S = 0.05
KILL_S = 2.5
COMMAND_SHARE = 0.3
SETTLE_S_MAX = 90.0
DESCRIPTORS_MAX = 64
"""What a mover has open besides its segments."""
CYCLES = ("put", "get", "into", "abort")
HERE = Path(__file__).resolve().parent


class Soak:
    """The cluster, its workers, and the dice that say what happens to them."""

    def __init__(self, folder: Path, seed: int, nodes: int) -> None:
        self.dice = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.kills: Counter[str] = Counter()
        self.events: Counter[str] = Counter()
        self.nats = NatsServer(folder)
        self.nats.start()
        self.nodes = [
            MoverNode(
                f"n{n}",
                folder / f"n{n}",
                self.nats.url,
                TENSORCAST_DRAM_BYTES=str(DRAM_BYTES),
                TENSORCAST_DISK_BYTES=str(DISK_BYTES),
                TENSORCAST_ROOM_WAIT_S="2",
            )
            for n in range(1, nodes + 1)
        ]
        self._folder = folder
        self._controlplane: subprocess.Popen[bytes] | None = None
        self._workers: dict[int, subprocess.Popen[str]] = {}
        self._lives = 0
        self._leases = 0
        self.held: list[LeaseId] = []
        self._started_at: dict[str, float] = {}

    def start(self) -> None:
        for node in self.nodes:
            node.start()
        self.start_controlplane()
        for number in range(WORKERS):
            self.start_worker(number)

    def close(self) -> None:
        for number in list(self._workers):
            self.kill_worker(number)
        self.kill_controlplane()
        for node in self.nodes:
            node.close()
        self.nats.stop()

    # ---- processes -------------------------------------------------------------------------

    def start_controlplane(self) -> None:
        environ = {
            "PATH": os.environ["PATH"],
            "TENSORCAST_CLUSTER": "test",
            "TENSORCAST_NATS_URL": self.nats.url,
            "TENSORCAST_HEARTBEAT_S": "0.2",
            "TENSORCAST_NODE_TIMEOUT_S": "5",
        }
        command = [sys.executable, "-m", "tensorcast.controlplane.main"]
        with (self._folder / "controlplane.log").open("ab") as log:
            self._controlplane = subprocess.Popen(
                [*command, "--services", "scheduler,timers"], env=environ, stderr=log
            )

    def kill_controlplane(self) -> None:
        if self._controlplane is not None:
            self._controlplane.kill()
            self._controlplane.wait()

    def start_worker(self, number: int) -> None:
        self._lives += 1
        command = [sys.executable, str(HERE / "worker.py"), str(number)]
        command += [str(self.dice.randrange(1 << 30)), *(str(n.socket) for n in self.nodes)]
        worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._workers[number] = worker
        threading.Thread(target=self._listen, args=[worker], daemon=True).start()

    def _listen(self, worker: subprocess.Popen[str]) -> None:
        assert worker.stdout is not None
        for line in worker.stdout:
            self.done[line.strip()] += 1

    def kill_worker(self, number: int) -> None:
        worker = self._workers.pop(number)
        worker.kill()
        assert worker.wait() != WRONG, "a worker has read wrong bytes"

    def kill_something(self) -> None:
        """As a crash, mostly; what was killed is started again."""
        what = self.dice.choice(("worker", "worker", "mover", "mover", "controlplane", "stop"))
        self.kills[what] += 1
        node = self.dice.choice(self.nodes)
        match what:
            case "worker":
                number = self.dice.randrange(WORKERS)
                self.kill_worker(number)
                self.start_worker(number)
            case "mover":
                node.kill()
                node.start()
            case "stop":
                assert node.stop() == 0, node.log_text()
                node.start()
            case _:
                self.kill_controlplane()
                self.start_controlplane()

    # ---- what users do ---------------------------------------------------------------------

    def command(self, view: ClusterView) -> Command | None:
        """Something that a user of the cluster asks for."""
        sealed = [a for a, one in view.artifacts.items() if one.status is ArtifactStatus.SEALED]
        if not sealed:
            return None
        artifact = self.dice.choice(sorted(sealed))
        node = NodeId(self.dice.choice(self.nodes).name)
        kinds = ("replicate", "replicate", "disk", "disk", "remove", "lease", "release", "key")
        match self.dice.choice((*kinds, "pin", "unpin", "unpin", "unpin")):
            case "replicate":
                return RequestReplicas(artifact=artifact, nodes=(node,), tier=Tier.DRAM)
            case "disk":
                return RequestReplicas(artifact=artifact, nodes=(node,), tier=Tier.DISK)
            case "remove":
                return RemoveArtifact(artifact=artifact)
            case "pin":
                return PinArtifact(artifact=artifact)
            case "unpin":
                return UnpinArtifact(artifact=artifact)
            case "lease":
                return self._lease(artifact, node)
            case "release":
                return ReleaseLease(lease=self.held.pop(0)) if self.held else None
            case _:
                set_keys = [k for k, one in view.keys.items() if one.status is KeyStatus.SET]
                return RemoveKey(key=self.dice.choice(sorted(set_keys))) if set_keys else None

    def _lease(self, artifact: ArtifactId, node: NodeId) -> AcquireLease:
        """Half of the holders die and never release it."""
        self._leases += 1
        lease = LeaseId(f"lease-{self._leases}")
        if self.dice.random() < 0.5:
            self.held.append(lease)
        return AcquireLease(
            lease=lease,
            artifact=artifact,
            node=self.dice.choice((None, node)),
            holder="soak",
            ttl_s=self.dice.choice((1.0, 2.0)),
        )

    @property
    def cycles(self) -> int:
        """Puts and reads that were carried out. What was refused, met a dead mover, or was asked of
        the cluster as a whole does not count."""
        return sum(self.done[what] for what in CYCLES)


async def run(soak: Soak, observer: Observer, cycles: int, say=print) -> None:
    """All the cycles, with kills between them."""
    loop, kill_at, told_at = asyncio.get_running_loop(), time.monotonic() + KILL_S, 0
    while soak.cycles < cycles:
        await asyncio.sleep(STEP_S)
        is_time = soak.dice.random() < COMMAND_SHARE
        command = soak.command(observer.follower.view) if is_time else None
        if command is not None:
            with suppress(TensorCastError):
                await observer.execute(command)
                soak.done[type(command).__name__] += 1
        if time.monotonic() > kill_at:
            await loop.run_in_executor(None, soak.kill_something)
            kill_at = time.monotonic() + soak.dice.uniform(0.2, 2 * KILL_S)
        if soak.cycles // 1000 > told_at:
            told_at = soak.cycles // 1000
            say(f"{soak.cycles} cycles, {sum(soak.kills.values())} kills")


async def until(predicate, what: str) -> None:
    deadline = time.monotonic() + SETTLE_S_MAX
    while not (done := await predicate()):
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.2)
    return done


async def check_after(soak: Soak, observer: Observer) -> None:
    """When all is quiet: nothing is lost, the log, the movers and the kernel say the same, and all
    of it goes when it is removed."""
    for number in range(WORKERS):
        soak.kill_worker(number)
    await until(lambda: _is_quiet(soak, observer), "the cluster does not become quiet")
    await _check_same(soak, observer)
    await _check_bytes(soak, observer)
    view = await observer.view()
    for artifact in view.artifacts.values():
        if artifact.status is ArtifactStatus.SEALED:
            await observer.execute(UnpinArtifact(artifact=artifact.id))
            await observer.execute(RemoveArtifact(artifact=artifact.id))
    await until(lambda: _is_empty(soak, observer), "what was removed does not go")
    await _check_same(soak, observer)
    events = await observer.events()
    _check_log(events, await observer.view())
    soak.events = Counter(event.type for event in events)


async def _is_quiet(soak: Soak, observer: Observer) -> bool:
    """No work, no lease of the dead, no put, no reader: all that the killed ones had is free."""
    view = await observer.view()
    held = [lease for lease in view.leases.values() if lease.status == "held"]
    if view.open_operations or held or view.leases_by_artifact:
        return False
    for node in soak.nodes:
        with node.application() as app:
            stats = app.stats()
        if stats.puts_open or stats.readers or stats.waiting or stats.journal_pending:
            return False
    return True


async def _check_same(soak: Soak, observer: Observer) -> None:
    """The log's view = the mover's count = what the kernel has."""
    await until(lambda: _is_same(soak, observer, tell=False), _differences(soak, observer.follower))


def _differences(soak: Soak, follower) -> str:
    return "\n".join(found for node in soak.nodes for found in _compare(node, follower.view))


async def _is_same(soak: Soak, observer: Observer, *, tell: bool) -> bool:
    view = await observer.view()
    return not any(True for node in soak.nodes for _ in _compare(node, view))


def _compare(node: MoverNode, view: ClusterView) -> Iterator[str]:
    mine = [view.replicas[r] for r in view.replicas_by_node.get(NodeId(node.name), ())]
    dram = [r for r in mine if r.tier is Tier.DRAM and r.status in PRESENT]
    disk = [r for r in mine if r.tier is Tier.DISK and r.status is ReplicaStatus.READY]
    with node.application() as app:
        stats = app.stats()
    node.take_in()
    seen = look(node)
    lying = [p for p in (node.folder / "data" / "disk").glob("*") if not p.name.startswith(".")]
    facts = {
        "replicas in memory": (len(dram), stats.replicas),
        "replicas on disk": (len(disk), len(lying)),
        "segments": (stats.segments, seen.segments),
        "segments that the supervisor keeps": (stats.segments, len(node.store)),
        "bytes of segments": (stats.used_bytes + stats.free_bytes, seen.size_bytes),
        "leftovers": ([], leftovers(node)),
    }
    for what, (expected, found) in facts.items():
        if expected != found:
            yield f"{node.name}: {what}: {expected} are expected, {found} are there"
    if stats.descriptors - stats.segments > DESCRIPTORS_MAX:
        yield f"{node.name}: {stats.descriptors} descriptors, {stats.segments} segments"


async def _check_bytes(soak: Soak, observer: Observer) -> None:
    """Every key still holds what was put: no eviction took a last copy."""
    view = await observer.view()
    for worker in range(WORKERS):
        for number in range(KEYS):
            key = view.keys.get(Key(key_of(worker, number)))
            if key is None or key.status is not KeyStatus.SET:
                continue
            artifact = view.artifacts[key.artifact]
            if artifact.status is ArtifactStatus.SEALED:
                await asyncio.to_thread(_read, soak, worker, number)


def _read(soak: Soak, worker: int, number: int) -> None:
    """From any node that has room: what is pinned may fill one."""
    for node in soak.nodes:
        try:
            with node.application() as app, app.get(key_of(worker, number)) as reading:
                assert reading.bytes() == content_of(worker, number).bytes
                return
        except OutOfCapacity as error:
            refused = error
    raise refused


async def _is_empty(soak: Soak, observer: Observer) -> bool:
    view = await observer.view()
    if any(replica.status in PRESENT for replica in view.replicas.values()):
        return False
    for node in soak.nodes:
        with node.application() as app:
            stats = app.stats()
        if stats.used_bytes or stats.disk_used_bytes or leftovers(node):
            return False
    return not view.open_operations


def _check_log(events, view: ClusterView) -> None:
    folded = ClusterView()
    for event in events:
        folded = project(folded, event)
    assert folded.skipped == 0, "the log holds events that cannot follow"
    assert folded.replicas == view.replicas


@contextmanager
def soaking(seed: int, nodes: int) -> Iterator[tuple[Soak, Watch]]:
    """The cluster in a folder of its own; all of it is taken away at the end."""
    with ExitStack() as owned:
        folder = owned.enter_context(tempfile.TemporaryDirectory(prefix="tc-soak-"))
        soak = Soak(Path(folder), seed, nodes)
        owned.callback(soak.close)
        soak.start()
        yield soak, owned.enter_context(Watch(soak.nodes, DRAM_BYTES, DISK_BYTES))


async def soak(cycles: int, seed: int, nodes: int = 2, say=print) -> None:
    """A whole run. Raises AssertionError for anything that must not be."""
    say(f"seed {seed}; again: .venv/bin/python tests/soak/run.py --cycles {cycles} --seed {seed}")
    with soaking(seed, nodes) as (world, watch):
        async with observing(world.nats.url) as observer:
            began = time.monotonic()
            await run(world, observer, cycles, say)
            took_s = time.monotonic() - began
            await check_after(world, observer)
        assert not watch.breaches, watch.breaches[:5]
        say(f"{world.cycles} cycles in {took_s:.0f} s: {dict(world.done.most_common())}")
        say(f"kills: {dict(world.kills)}; {watch.looks} looks at the memory")
        told = ("replica.ready", "replica.evicting", "node.pressured", "lease.expired")
        say(f"events: { {name: world.events[name] for name in told} }")
        for node in world.nodes:
            most, disk = watch.most[node.name], watch.most_disk[node.name]
            say(
                f"{node.name}: at most {most.size_bytes / MIB:.0f} of {DRAM_BYTES / MIB:.0f} MiB "
                f"in {most.segments} segments, {disk / MIB:.0f} of {DISK_BYTES / MIB:.0f} MiB disk"
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--nodes", type=int, default=2)
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 30) if options.seed is None else options.seed
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    asyncio.run(soak(options.cycles, seed, options.nodes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
