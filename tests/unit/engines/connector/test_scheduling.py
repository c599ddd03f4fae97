"""The scheduler's side, step by step, with a store that is a set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tensorcast.engines.vllm.connector.lookups import Lookups
from tensorcast.engines.vllm.connector.messages import StepReport
from tensorcast.engines.vllm.connector.scheduling import (
    DOUBT_S_MAX,
    RETRY_S,
    SchedulerSide,
)
from tensorcast.engines.vllm.connector.space import block_keys
from tensorcast.engines.vllm.connector.versions import Versions
from tensorcast.schema.block_wire import State

SIZE = 16


@dataclass
class Request:
    """A request of so many tokens; its hashes are those of `stem`."""

    request_id: str
    num_tokens: int
    stem: str = "p"
    kv_transfer_params: dict[str, object] | None = None
    block_hashes: list[bytes] = field(default_factory=list)
    all_token_ids: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.grow(0)

    def grow(self, tokens: int) -> None:
        self.num_tokens += tokens
        self.block_hashes[:] = hashes(self.stem, self.num_tokens // SIZE)
        self.all_token_ids[:] = range(self.num_tokens)


def hashes(stem: str, count: int) -> list[bytes]:
    return [f"{stem}{n}".encode().rjust(32, b".") for n in range(count)]


@dataclass
class New:
    req_id: str
    block_ids: tuple[list[int], ...]
    num_computed_tokens: int


@dataclass
class Cached:
    req_ids: list[str] = field(default_factory=list)
    resumed_req_ids: set[str] = field(default_factory=set)
    new_block_ids: list[tuple[list[int], ...] | None] = field(default_factory=list)
    num_computed_tokens: list[int] = field(default_factory=list)


@dataclass
class Step:
    scheduled_new_reqs: list[New] = field(default_factory=list)
    scheduled_cached_reqs: Cached = field(default_factory=Cached)
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    preempted_req_ids: set[str] | None = None


class World:
    """A side, a store and a clock."""

    def __init__(
        self,
        *,
        loads: bool = True,
        saves: bool = True,
        ranks: int = 1,
        promise_s: float = 30,
    ) -> None:
        self.store: dict[bytes, State] = {}
        self.is_away = False
        self.asked_nodes: list[str | None] = []
        self.now_s = 0.0
        self.versions = Versions(lambda weights: f"space-{weights}")
        self.lookups = Lookups(self.find, State.ABSENT, answer_s=30, promise_s=promise_s)
        self.side = SchedulerSide(
            self.lookups,
            self.versions,
            SIZE,
            loads=loads,
            saves=saves,
            node="n1",
            clock=lambda: self.now_s,
        )
        self.ranks = list(range(ranks))
        self.side.know_workers(self.ranks, 1)
        self.report(weights="w1")

    def find(self, keys: list[bytes], node: str | None) -> bytes | None:
        self.asked_nodes.append(node)
        if self.is_away:
            return None
        return bytes([self.store.get(key, State.ABSENT) for key in keys])

    def keep(self, stem: str, count: int, state: State = State.IN_MEMORY, weights="w1") -> None:
        keys = block_keys(f"space-{weights}", hashes(stem, count), self.ranks, 1)
        self.store |= dict.fromkeys(keys, state)

    def report(self, weights: str = "w1", **facts) -> None:
        self.side.take_report(StepReport(weights=dict.fromkeys(self.ranks, weights), **facts))

    def match(self, request: Request, computed: int = 0) -> int | None:
        self.side.begin(request)
        for _ in range(8000):  # each waits a moment
            found = self.side.match(request, computed)
            if found is not None:
                return found
        raise AssertionError("no answer")

    def run(self, request: Request, computed: int, tokens: int, blocks: list[int]):
        """A first step of a request."""
        new = New(request.request_id, (blocks,), computed)
        return self.side.plan(Step([new], num_scheduled_tokens={request.request_id: tokens}))

    def go_on(self, request: Request, computed: int, tokens: int, blocks=None, *, resumed=False):
        """A later step."""
        cached = Cached(
            [request.request_id],
            {request.request_id} if resumed else set(),
            [(blocks,) if blocks is not None else None],
            [computed],
        )
        step = Step([], cached, {request.request_id: tokens})
        return self.side.plan(step)

    def end(self, plan, *, is_kept: bool = True, workers: int = 1) -> None:
        numbers = [job.number for job in plan.saves]
        dropped = set() if is_kept else set(numbers)
        self.report(done=dict.fromkeys(numbers, workers), dropped=dropped)


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.side.close()


def test_a_request_that_nobody_has_is_saved_block_by_block(world: World):
    request = Request("r", 40)
    assert world.match(request) == 0
    plan = world.run(request, 0, 20, [1, 2, 3])  # the prompt comes in two chunks
    assert [(job.hashes, job.block_ids) for job in plan.saves] == [((hashes("p", 1)[0],), (1,))]
    plan = world.go_on(request, 20, 20)
    assert [job.block_ids for job in plan.saves] == [(2,)]
    request.grow(8)
    plan = world.go_on(request, 40, 8, [4])
    assert [job.block_ids for job in plan.saves] == [(3,)]
    assert plan.saves[0].space == "space-w1"


def test_what_is_stored_is_loaded_and_not_saved_again(world: World):
    world.keep("p", 2)
    request = Request("r", 60)
    assert world.match(request) == 2 * SIZE
    world.side.allocate(request, [5, 6, 7, 8], 2 * SIZE)
    plan = world.side.plan(Step())
    (job,) = plan.loads
    assert (job.hashes, job.block_ids) == (tuple(hashes("p", 2)), (5, 6))
    plan = world.run(request, 32, 28, [5, 6, 7, 8])
    assert [job.block_ids for job in plan.saves] == [(7,)]
    assert not plan.loads


def test_what_came_from_another_node_is_kept_here_too(world: World):
    world.keep("p", 2, State.ELSEWHERE)
    request = Request("r", 60)
    assert world.match(request) == 2 * SIZE
    assert world.side.sources(request, 2 * SIZE) == {State.ELSEWHERE: 2 * SIZE}
    world.side.allocate(request, [5, 6, 7, 8], 2 * SIZE)
    world.side.plan(Step())
    plan = world.run(request, 32, 28, [5, 6, 7, 8])
    assert [job.block_ids for job in plan.saves] == [(5, 6, 7)]


def test_a_local_hit_is_continued_by_the_store(world: World):
    world.keep("p", 3)
    request = Request("r", 60)
    assert world.match(request, 16) == 2 * SIZE
    world.side.allocate(request, [5, 6, 7, 8], 2 * SIZE)
    (job,) = world.side.plan(Step()).loads
    assert (job.hashes, job.block_ids) == (tuple(hashes("p", 3)[1:]), (6, 7))


def test_what_the_engine_has_and_the_store_has_lost_is_saved_again(world: World):
    request = Request("r", 60)
    assert world.match(request, 48) == 0
    plan = world.run(request, 48, 12, [5, 6, 7, 8])
    assert [job.block_ids for job in plan.saves] == [(5, 6, 7)]


def test_a_block_counts_when_all_ranks_have_it():
    world = World(ranks=2)
    world.keep("p", 3)
    del world.store[block_keys("space-w1", hashes("p", 3), [1], 1)[2]]
    assert world.match(Request("r", 60)) == 2 * SIZE
    world.side.close()


def test_a_request_whose_blocks_are_being_saved_keeps_them(world: World):
    request = Request("r", 40)
    world.match(request)
    plan = world.run(request, 0, 40, [1, 2, 3])
    assert world.side.finish(request) == (True, None)
    assert world.side.plan(Step()).finishing == ["r"]
    assert world.side.plan(Step()).finishing == []
    world.end(plan)


def test_a_request_whose_blocks_are_saved_gives_them_back_at_once(world: World):
    request = Request("r", 40)
    world.match(request)
    world.end(world.run(request, 0, 40, [1, 2, 3]))
    assert world.side.finish(request) == (False, None)
    assert [numbers for _, numbers in world.side.take_kept()] == [[0, 1]]
    assert world.side.take_kept() == []


def test_a_save_ends_with_the_last_worker():
    world = World(ranks=2)
    request = Request("r", 40)
    world.match(request)
    plan = world.run(request, 0, 40, [1, 2, 3])
    world.end(plan)
    assert world.side.finish(request)[0]
    world.side.close()


def test_a_request_that_ends_while_it_is_loaded_is_freed_by_the_engine(world: World):
    world.keep("p", 2)
    request = Request("r", 60)
    world.match(request)
    world.side.allocate(request, [5, 6, 7, 8], 2 * SIZE)
    world.side.plan(Step())
    assert world.side.finish(request) == (False, None)


def test_what_could_not_be_saved_is_tried_again_later(world: World):
    request = Request("r", 40)
    world.match(request)
    world.end(world.run(request, 0, 40, [1, 2, 3]), is_kept=False)
    assert world.go_on(request, 40, 1).saves == []
    world.now_s += RETRY_S
    assert [job.block_ids for job in world.go_on(request, 41, 1).saves] == [(1, 2)]


def test_a_load_that_failed_is_not_tried_again(world: World):
    world.keep("p", 2)
    request = Request("r", 60)
    assert world.match(request) == 2 * SIZE
    world.side.allocate(request, [5, 6, 7, 8], 2 * SIZE)
    world.side.plan(Step())
    world.report(failed={"r"})
    assert world.match(request) == 0
    plan = world.run(request, 0, 60, [5, 6, 7, 8])
    assert [job.block_ids for job in plan.saves] == [(5, 6, 7)]


def test_a_preempted_request_gives_up_its_saves_and_asks_anew(world: World):
    request = Request("r", 40)
    world.match(request)
    plan = world.run(request, 0, 40, [1, 2, 3])
    step = Step(preempted_req_ids={"r"})
    assert world.side.plan(step).preempted == {"r"}
    world.keep("p", 2)
    assert world.match(request) == 2 * SIZE
    world.side.allocate(request, [7, 8, 9], 2 * SIZE)
    (job,) = world.side.plan(Step()).loads
    assert job.block_ids == (7, 8)
    world.end(plan)  # too late: those were other blocks
    assert world.side.take_kept() == []
    plan = world.go_on(request, 32, 8, [7, 8, 9], resumed=True)
    assert plan.saves == []


def test_a_request_that_is_preempted_and_resumed_before_the_next_step_keeps_its_load(world: World):
    request = Request("r", 40)
    world.match(request)
    world.run(request, 0, 40, [1, 2, 3])
    world.keep("p", 2)
    assert world.match(request) == 2 * SIZE  # the engine asks: so it took the blocks back
    world.side.allocate(request, [7, 8, 9], 2 * SIZE)
    plan = world.side.plan(Step(preempted_req_ids={"r"}))
    assert [job.block_ids for job in plan.loads] == [(7, 8)]
    assert world.side.finish(request) == (False, None)


def test_a_node_that_is_away_is_no_hit(world: World):
    world.keep("p", 2)
    world.is_away = True
    assert world.match(Request("r", 60)) == 0


def test_blocks_of_other_weights_are_not_seen(world: World):
    world.keep("p", 2)
    world.report(weights="w2")
    assert world.match(Request("r", 60)) == 0


def test_after_an_update_a_question_that_was_asked_before_it_is_asked_anew(world: World):
    world.keep("p", 3)
    world.keep("p", 1, weights="w2")
    request = Request("r", 60)
    assert world.match(request) == 3 * SIZE
    world.report(weights="w2")
    assert world.match(request) == SIZE


def test_kv_of_before_an_update_is_never_saved_after_it(world: World):
    old = Request("old", 40)
    world.match(old)
    world.run(old, 0, 18, [1, 2, 3])
    world.report(weights="w1")
    world.go_on(old, 18, 2)
    world.report(weights="w2")
    assert world.go_on(old, 20, 20).saves == []
    late = Request("late", 60)
    world.match(late, 16)  # a block of the engine's own cache, which was not cleared
    assert world.run(late, 16, 44, [1, 4, 5, 6]).saves == []
    new = Request("new", 40, stem="q")
    world.match(new)
    assert [job.space for job in world.run(new, 0, 40, [7, 8, 9]).saves] == ["space-w2"]


def test_roles():
    producer, consumer = World(loads=False), World(saves=False)
    producer.keep("p", 2)
    consumer.keep("p", 2)
    request = Request("r", 60)
    assert producer.match(request) == 0
    asked = producer.side._asked["r"].future
    assert asked is not None
    asked.result()  # what is there is not saved again
    assert consumer.match(request) == 2 * SIZE
    assert [j.block_ids for j in producer.run(request, 0, 60, [1, 2, 3, 4]).saves] == [(3,)]
    assert consumer.run(request, 0, 60, [1, 2, 3, 4]).saves == []
    producer.side.close()
    consumer.side.close()


def test_a_prefill_engine_tells_what_the_decode_engine_will_find(world: World):
    request = Request("r", 40, kv_transfer_params={"do_remote_decode": True})
    world.match(request)
    world.run(request, 0, 40, [1, 2, 3])
    _, told = world.side.finish(request)
    assert told is not None
    assert told["tensorcast"] == {"space": "space-w1", "blocks": 2, "node": "n1"}
    assert told["do_remote_prefill"] is True


def test_a_decode_engine_waits_for_what_was_promised(world: World):
    said = {"tensorcast": {"blocks": 2, "node": "n2"}}
    request = Request("r", 60, kv_transfer_params=said)
    world.side.begin(request)
    assert world.side.match(request, 0) is None
    world.keep("p", 2)
    assert world.match(request) == 2 * SIZE
    assert set(world.asked_nodes) == {"n2"}
    world.side.allocate(request, [1, 2, 3, 4], 2 * SIZE)
    assert [job.node for job in world.side.plan(Step()).loads] == ["n2"]


def test_a_promise_that_is_not_kept_costs_a_moment_only():
    world = World(promise_s=0.05)
    request = Request("r", 60, kv_transfer_params={"tensorcast": {"blocks": 2}})
    assert world.match(request) == 0
    world.side.close()


@pytest.mark.parametrize("said", [None, 3, {"blocks": "x"}, {"blocks": -1}, {"blocks": 10**9}, []])
def test_promises_that_make_no_sense_do_no_harm(world: World, said):
    world.keep("p", 3)
    request = Request("r", 60, kv_transfer_params={"tensorcast": said})
    assert world.match(request) == 3 * SIZE


def test_after_the_cache_was_emptied_the_workers_say_first_which_weights_they_have(world: World):
    world.keep("p", 2)
    world.side.doubt_weights()
    request = Request("r", 60)
    world.side.begin(request)
    assert world.side.match(request, 0) is None
    assert not world.asked_nodes  # the old weights' blocks are asked for by nobody
    world.side.plan(Step())  # a step without work, which has the workers report
    world.report(weights="w2")
    assert world.match(request) == 0
    plan = world.run(request, 0, 60, [1, 2, 3, 4])
    assert plan.weights == "w2"
    assert {job.space for job in plan.saves} == {"space-w2"}


def test_workers_that_say_nothing_are_not_waited_for_for_ever(world: World):
    world.keep("p", 2)
    world.side.doubt_weights()
    request = Request("r", 60)
    assert world.side.match(request, 0) is None
    world.now_s += DOUBT_S_MAX
    assert world.match(request) == 2 * SIZE


def test_a_request_that_keeps_apart_is_neither_loaded_nor_saved(world: World):
    world.keep("p", 3)
    said = {"tensorcast": {"apart": True}}
    request = Request("r", 60, kv_transfer_params=said)
    assert world.match(request) == 0
    plan = world.run(request, 0, 60, [1, 2, 3, 4])
    assert not plan.loads
    assert not plan.saves
