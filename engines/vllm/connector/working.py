"""The worker's side of the connector: moves blocks between the engine's cache and the store, in
threads of its own, while the engine computes.

The engine may use a block for something else as soon as it is told that we are done with it, or
when it preempts a request. Until then nobody else writes to blocks that are loaded, and nobody
writes to those that are saved. Each load ends in bounded time and is reported once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, TypeVar

from tensorcast.client.blocks_pieces import Pieces
from tensorcast.engines.vllm.connector.counters import Counters
from tensorcast.engines.vllm.connector.link import Link
from tensorcast.engines.vllm.connector.memory import CacheMemory, Guard
from tensorcast.engines.vllm.connector.messages import LoadJob, SaveJob, StepPlan, StepReport
from tensorcast.engines.vllm.connector.space import block_keys
from tensorcast.engines.vllm.connector.tracks import usable_blocks
from tensorcast.schema.blocks import BlockPut
from tensorcast.schema.errors import Cancelled

LOGGER = logging.getLogger("vllm.tensorcast")

T = TypeVar("T")

LOAD_THREADS: Final = 2
SHARE_BYTES: Final = 2 << 20
"""From so many bytes on for each thread a load is shared among them."""
IDLE_S: Final = 0.005
"""A step in which the engine has nothing to compute waits so long for loads, instead of being over
at once and coming again a millisecond later."""
LOAD_BYTES: Final = 32 << 20
"""So much is asked for at once: in between it is looked whether the load still makes sense."""
LOAD_S_MAX: Final = 20.0
"""What has not come by then is computed."""
WAITING_SAVES_MAX: Final = 256
"""More saves than these are not begun: the engine's blocks must not wait for a slow node."""


@dataclass
class _Load:
    """`shares`: how many blocks of each part of the job there are, in order."""

    job: LoadJob
    weights: str | None
    shares: list[tuple[int, Future[int]]]

    @property
    def is_done(self) -> bool:
        return all(future.done() for _, future in self.shares)

    def count_good(self) -> int:
        """How many blocks, from the first on, are in the cache."""
        good = 0
        for blocks, future in self.shares:
            found = _result(future, 0)
            good += found
            if found < blocks:
                break
        return good


@dataclass
class _Save:
    """`future`: the numbers of the jobs of its step that are kept; None: it was not begun."""

    job: SaveJob
    guard: Guard
    future: Future[set[int]] | None = None


class WorkerSide:
    """`weights` tells which weights the model of this process has now."""

    def __init__(self, link: Link, rank: int, weights: Callable[[], str | None]) -> None:
        self._link = link
        self._rank = rank
        self._weights = weights
        self._memory: CacheMemory | None = None
        self._loading = ThreadPoolExecutor(LOAD_THREADS, "tensorcast-load")
        self._saving = ThreadPoolExecutor(1, "tensorcast-save")
        self._loads: list[_Load] = []
        self._saves: dict[int, _Save] = {}
        self._finishing: set[str] = set()
        self._bad_blocks: set[int] = set()
        self._report = StepReport()
        self._counters = Counters()

    def use_memory(self, memory: CacheMemory) -> None:
        """The engine's cache."""
        self._memory = memory

    # ---- in each step, in this order -----------------------------------------------------------

    def give_up(self, request_ids: set[str]) -> None:
        """The engine wants the blocks of these requests back, now: what is being saved of them is
        not read any more when this returns."""
        for number, save in list(self._saves.items()):
            if save.job.request_id in request_ids:
                save.guard.give_up()
                del self._saves[number]
                self._counters.add("saves_given_up", 1)

    def load(self, plan: StepPlan) -> None:
        """Begins the loads of a step."""
        for job in plan.loads:
            weights = self._weights()
            shares: list[tuple[int, Future[int]]] = []
            if plan.weights == weights and self._memory is not None:
                shares = [
                    (stop - first, self._loading.submit(self._load, job, first, stop))
                    for first, stop in split_evenly(
                        len(job.hashes), self._memory.block_bytes, LOAD_THREADS
                    )
                ]
            self._loads.append(_Load(job, weights, shares))

    def save(self, plan: StepPlan) -> None:
        """Begins the saves of a step whose blocks are computed, all at once: what is asked of the
        node for each of them costs the engine as much as to copy a block."""
        is_stale = plan.weights != self._weights() or self._memory is None
        is_away = is_stale or self._link.is_resting
        saves = [_Save(job, Guard()) for job in plan.saves]
        if is_away or len(self._saves) + len(saves) > WAITING_SAVES_MAX:
            self._counters.add("saves_dropped", len(saves))
        elif saves:
            future = self._saving.submit(self._save, saves)
            for save in saves:
                save.future = future
        self._saves.update((save.job.number, save) for save in saves)
        self._finishing.update(plan.finishing)

    def take_ended(self, *, is_idle: bool = False) -> tuple[set[str], set[str]]:
        """The requests of which no block is read any more, and those whose loads have ended; each
        is told once. `is_idle`: the engine has nothing to do but to wait for loads."""
        if is_idle and self._loads:
            wait([future for _, future in self._loads[0].shares], IDLE_S)
        loaded = {load.job.request_id for load in self._end_loads()}
        self._end_saves()
        busy = {save.job.request_id for save in self._saves.values()}
        free = self._finishing - busy
        self._finishing -= free
        return free, loaded

    def take_bad_blocks(self) -> set[int]:
        """Blocks of the cache whose loads did not succeed."""
        found, self._bad_blocks = self._bad_blocks, set()
        return found

    def take_report(self) -> StepReport:
        """For the scheduler's side, once in each step."""
        found, self._report = self._report, StepReport()
        found.weights = {self._rank: self._weights()}
        return found

    def take_counters(self) -> dict[str, float]:
        """What was moved since the last call."""
        return self._counters.take()

    def close(self) -> None:
        """Ends what is under way. Safe to repeat."""
        for save in self._saves.values():
            save.guard.give_up()
        for pool in (self._loading, self._saving):
            pool.shutdown(wait=False, cancel_futures=True)
        self._link.close()

    # ---- ends ----------------------------------------------------------------------------------

    def _end_loads(self) -> list[_Load]:
        ended = [load for load in self._loads if load.is_done]
        self._loads = [load for load in self._loads if load not in ended]
        for load in ended:
            good = load.count_good()
            if load.weights != self._weights():  # they changed meanwhile: it is of no use
                good = 0
            bad = load.job.block_ids[good:]
            self._counters.add("loaded_blocks", good)
            if bad:
                self._bad_blocks.update(bad)
                self._report.failed.add(load.job.request_id)
                self._counters.add("load_failures", 1)
                self._counters.add("failed_blocks", len(bad))
        return ended

    def _end_saves(self) -> None:
        for number, save in list(self._saves.items()):
            if save.future is not None and not save.future.done():
                continue
            del self._saves[number]
            self._report.done[number] = 1
            if save.future is None or number not in _result(save.future, set()):
                self._report.dropped.add(number)

    # ---- in threads ----------------------------------------------------------------------------

    def _load(self, job: LoadJob, first: int, stop: int) -> int:
        """How many blocks, from number `first` of the job on, are in the cache now."""
        memory = self._memory
        assert memory is not None
        began_s = time.monotonic()
        each = max(1, LOAD_BYTES // memory.block_bytes)
        at = first
        while at < stop and time.monotonic() - began_s < LOAD_S_MAX:
            end = min(stop, at + each)
            hashes = job.hashes[at:end]
            targets = [part for n in job.block_ids[at:end] for part in memory.pieces(n)]
            keys = block_keys(job.space, hashes, [self._rank], memory.parts)
            found = self._link.get_into(keys, targets, job.node)
            arrived = usable_blocks(found) // memory.parts
            at += arrived
            if arrived < len(hashes):
                break
        self._counters.add("loaded_bytes", (at - first) * memory.block_bytes)
        self._counters.add("load_s", time.monotonic() - began_s)
        return at - first

    def _save(self, saves: list[_Save]) -> set[int]:
        """The numbers of the jobs whose blocks are all kept: not of those that the engine wanted
        back."""
        began_s = time.monotonic()
        kept: set[int] = set()
        while live := [save for save in saves if not save.guard.is_given_up]:
            try:
                kept = self._put(live)
                break
            except Cancelled:  # of one of them: the others once more
                continue
        self._counters.add("save_s", time.monotonic() - began_s)
        return kept

    def _put(self, saves: list[_Save]) -> set[int]:
        """As `_save`. Raises Cancelled when one of them was given up meanwhile."""
        memory = self._memory
        assert memory is not None
        keys: list[bytes] = []
        sources: list[Pieces] = []
        for save in saves:
            job = save.job
            keys += block_keys(job.space, job.hashes, [self._rank], memory.parts)
            sources += [part for n in job.block_ids for part in memory.guarded(n, save.guard)]
        answers = self._link.put(keys, sources)
        if answers is None:
            return set()
        stored = answers.count(BlockPut.STORED)
        self._counters.add("saved_blocks", stored / memory.parts)
        self._counters.add("saved_bytes", stored * memory.block_bytes / memory.parts)
        self._counters.add("rejected_blocks", answers.count(BlockPut.REJECTED) / memory.parts)
        sizes = [len(save.job.hashes) * memory.parts for save in saves]
        ends = list(accumulate(sizes))
        return {
            save.job.number
            for save, end, size in zip(saves, ends, sizes, strict=True)
            if BlockPut.REJECTED not in answers[end - size : end]
        }


def split_evenly(count: int, each_bytes: int, threads: int) -> list[tuple[int, int]]:
    """Ranges of `count` things of so many bytes for at most so many threads."""
    most = max(1, count * each_bytes // SHARE_BYTES)
    size = -(-count // min(threads, most))
    return [(first, min(count, first + size)) for first in range(0, count, size)]


def _result(future: Future[T], otherwise: T) -> T:
    """What a job made; `otherwise` when it failed for a reason that nobody foresaw."""
    error = future.exception()
    if error is None:
        return future.result()
    LOGGER.error("TensorCast: moving KV blocks failed.", exc_info=error)
    return otherwise
