"""The worker's side of the KV connector with real blocks of a node: what it loads, saves, gives up
and says, also when the node goes away."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch

from block_nodes import BlockNode, block_node
from tensorcast.client.blocks import Blocks
from tensorcast.engines.vllm.connector.link import Link
from tensorcast.engines.vllm.connector.memory import CacheMemory
from tensorcast.engines.vllm.connector.messages import LoadJob, SaveJob, StepPlan, StepReport
from tensorcast.engines.vllm.connector.working import WorkerSide
from tensorcast.schema.errors import Unavailable

COUNT = 8


@pytest.fixture
def node() -> Iterator[BlockNode]:
    with block_node() as node:
        yield node


class Worker:
    """A worker with a small cache."""

    def __init__(self, link: Link) -> None:
        self.weights: str | None = "w1"
        self.side = WorkerSide(link, 0, lambda: self.weights)
        self.caches = {f"layer{n}": torch.randn(COUNT, 2, 16, 64) for n in range(3)}
        self.side.use_memory(CacheMemory(self.caches))

    def block(self, block_id: int) -> torch.Tensor:
        return torch.stack([cache[block_id] for cache in self.caches.values()])

    def save(self, number: int, blocks: list[int], request: str = "r", **plan) -> None:
        job = SaveJob(number, request, "space", tuple(map(hash_of, blocks)), tuple(blocks))
        self.side.save(StepPlan(weights="w1", saves=[job], **plan))

    def load(self, blocks: list[int], into: list[int], request: str = "r") -> None:
        job = LoadJob(request, "space", tuple(map(hash_of, blocks)), tuple(into))
        self.side.load(StepPlan(weights="w1", loads=[job]))

    def wait(self) -> tuple[set[str], set[str], StepReport]:
        """Steps until something has ended; each a millisecond, as the engine's."""
        free: set[str] = set()
        loaded: set[str] = set()
        report = StepReport()
        for _ in range(5000):
            some_free, some_loaded = self.side.take_ended()
            free |= some_free
            loaded |= some_loaded
            report.add(self.side.take_report())
            if free or loaded or report.done:
                break
            time.sleep(0.001)
        return free, loaded, report


def hash_of(n: int) -> bytes:
    return bytes([n]) * 32


@pytest.fixture
def worker(node: BlockNode) -> Iterator[Worker]:
    worker = Worker(Link(node.connect))
    yield worker
    worker.side.close()


def test_blocks_come_back_as_they_were(worker: Worker):
    worker.save(1, [0, 1, 2])
    _, _, report = worker.wait()
    assert (report.done, report.dropped) == ({1: 1}, set())
    before = [worker.block(n) for n in range(3)]
    worker.load([0, 1, 2], [5, 6, 7])
    _, loaded, report = worker.wait()
    assert (loaded, report.failed, worker.side.take_bad_blocks()) == ({"r"}, set(), set())
    assert all(torch.equal(worker.block(5 + n), before[n]) for n in range(3))
    counted = worker.side.take_counters()
    assert (counted["saved_blocks"], counted["loaded_blocks"]) == (3, 3)


def test_what_comes_after_a_block_that_is_gone_is_bad(worker: Worker):
    worker.save(1, [0, 2])
    worker.wait()
    worker.load([0, 1, 2], [5, 6, 7])
    _, loaded, report = worker.wait()
    assert (loaded, report.failed) == ({"r"}, {"r"})
    assert worker.side.take_bad_blocks() == {6, 7}
    assert worker.side.take_bad_blocks() == set()


def test_a_request_is_free_when_its_saves_are_done(worker: Worker):
    worker.save(1, [0], finishing=["r"])
    free, _, report = worker.wait()
    while not free:
        free, _, more = worker.wait()
        report.add(more)
    assert (free, report.done) == ({"r"}, {1: 1})
    worker.side.save(StepPlan(weights="w1", finishing=["s"]))
    assert worker.side.take_ended() == ({"s"}, set())
    assert worker.side.take_ended() == (set(), set())


def test_of_a_step_only_what_the_engine_takes_back_is_lost(worker: Worker):
    """The blocks of a step go to the node together."""
    worker.side.save(
        StepPlan(
            weights="w1",
            saves=[SaveJob(n, f"r{n}", "space", (hash_of(n),), (n,)) for n in range(COUNT)],
        )
    )
    worker.side.give_up({"r0", "r3"})
    done: set[int] = set()
    while len(done) < COUNT - 2:
        _, _, report = worker.wait()
        assert not report.dropped
        done |= report.done.keys()
    assert done == set(range(COUNT)) - {0, 3}
    worker.load([1, 2], [5, 6])
    worker.wait()
    assert not worker.side.take_bad_blocks()


def test_what_the_engine_takes_back_is_never_stored_with_other_content(
    worker: Worker, node: BlockNode
):
    for round_ in range(30):
        blocks = list(range(COUNT))
        hashes = tuple(bytes([round_, n]) * 16 for n in blocks)
        before = {hash_: worker.block(n) for hash_, n in zip(hashes, blocks, strict=True)}
        job = SaveJob(round_, f"r{round_}", "space", hashes, tuple(blocks))
        worker.side.save(StepPlan(weights="w1", saves=[job]))
        time.sleep(0.0002 * (round_ % 7))
        worker.side.give_up({f"r{round_}"})
        for cache in worker.caches.values():
            cache.normal_()  # the blocks are another request's now
        for hash_, wanted in before.items():
            found = LoadJob("l", "space", (hash_,), (0,))
            worker.side.load(StepPlan(weights="w1", loads=[found]))
            worker.wait()
            if not worker.side.take_bad_blocks():
                assert torch.equal(worker.block(0), wanted)


def test_other_weights_load_and_save_nothing(worker: Worker):
    worker.save(1, [0])
    worker.wait()
    worker.weights = "w2"
    worker.save(2, [1])
    _, _, report = worker.wait()
    assert (report.dropped, report.weights) == ({2}, {0: "w2"})
    worker.load([0], [5])
    _, loaded, report = worker.wait()
    assert (loaded, report.failed, worker.side.take_bad_blocks()) == ({"r"}, {"r"}, {5})


def test_weights_that_change_while_it_loads_make_it_useless(worker: Worker):
    worker.save(1, [0])
    worker.wait()
    worker.load([0], [5])
    worker.weights = "w2"  # an update between two steps
    _, _, report = worker.wait()
    assert (report.failed, worker.side.take_bad_blocks()) == ({"r"}, {5})


def test_a_node_that_is_away_costs_a_moment_and_comes_back(node: BlockNode):
    is_away = True

    def connect() -> Blocks:
        if is_away:
            raise Unavailable("away", hint="wait")
        return node.connect()

    worker = Worker(Link(connect))
    worker.save(1, [0])
    worker.load([0], [5], "a")
    ended, _, report = set(), set(), StepReport()
    while not (ended and report.done):
        _, loaded, more = worker.wait()
        ended |= loaded
        report.add(more)
    assert (report.dropped, report.failed) == ({1}, {"a"})
    worker.side.take_bad_blocks()
    is_away = False
    deadline = time.monotonic() + 20
    number = 2
    while worker.side.take_counters().get("saved_blocks", 0) == 0:
        assert time.monotonic() < deadline
        worker.save(number, [0])
        worker.wait()
        number += 1
        time.sleep(0.05)
    worker.load([0], [5])
    worker.wait()
    assert torch.equal(worker.block(5), worker.block(0))
    worker.side.close()
