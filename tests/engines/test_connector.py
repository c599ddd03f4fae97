"""Real engines that share KV blocks: the tokens are always those of an engine that is alone,
whoever computed the blocks, and whatever dies."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from safetensors.torch import load_file

import engine
import tensorcast as tc
from cluster import Cluster, running_cluster
from models import tiny_model
from tensorcast.client.context import Context, resolve_context
from tensorcast.engines.vllm.updates import update_engines

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.timeout(600)]

BLOCK = 128
TOKENS = 12


def flags(role: str = "kv_both", **extra: object) -> tuple[str, ...]:
    """What turns the connector on."""
    config = {
        "kv_connector": "TensorCastConnector",
        "kv_role": role,
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": extra,
    }
    return ("--kv-transfer-config", json.dumps(config))


def prompt(length: int, seed: int, *, after: list[int] | None = None) -> list[int]:
    """Token ids that no other seed has, after those of another prompt."""
    chosen = random.Random(seed)
    first = list(after or [])
    return first + [chosen.randrange(5, 4000) for _ in range(length - len(first))]


@dataclass
class Engines:
    """One engine on each of two nodes, and one that is alone."""

    cluster: Cluster
    first: engine.Engine
    second: engine.Engine
    alone: engine.Engine

    def expect(self, ids: list[int]) -> tuple[int, ...]:
        """What an engine without the connector makes of a prompt."""
        return self.alone.generate(ids, TOKENS).tokens


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    if not engine.PYTHON.exists():
        pytest.skip("needs a real engine: scripts/test engines")
    folder = Path(tempfile.mkdtemp(prefix="tensorcast-connector-"))
    started: list[engine.Engine] = []
    try:
        with running_cluster(folder / "cluster", 2) as cluster:
            env = {k: v for k, v in cluster.env.items() if k.startswith("TENSORCAST_")}
            for node in ("n1", "n2"):
                more = flags(node=node)
                started.append(engine.launch(tiny_model(), folder / node, *more, env=env))
            started.append(engine.launch(tiny_model(), folder / "alone"))
            try:
                yield Engines(cluster, *[one.wait_ready() for one in started])
            finally:
                for one in started:
                    one.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def wait_for_hit(ask: Callable[[], engine.Completion], tokens: int) -> engine.Completion:
    """Asks with prompts of its own until so many tokens were cached: saves take a moment."""
    deadline = time.monotonic() + 20
    while True:
        found = ask()
        if found.cached_tokens >= tokens or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def forget(one: engine.Engine) -> None:
    """Empties the engine's own prefix cache: which it refuses while blocks are being saved."""
    for _ in range(200):
        if one.ask("/reset_prefix_cache", method="POST") == {"success": True}:
            return
        time.sleep(0.02)
    raise AssertionError("the prefix cache cannot be emptied")


def test_an_engine_gets_back_what_it_forgot(engines: Engines):
    ids = prompt(1000, 1)
    wanted = engines.expect(ids)
    assert engines.first.generate(ids, TOKENS).tokens == wanted
    forget(engines.first)
    again = engines.first.generate(ids, TOKENS)
    assert again.tokens == wanted
    assert again.cached_tokens == 7 * BLOCK
    metrics = engines.first.metrics()
    assert metrics.total("vllm:external_prefix_cache_hits_total") >= 7 * BLOCK
    assert metrics.total("vllm:tensorcast_kv_saved_blocks_total") >= 7
    assert metrics.total("vllm:tensorcast_kv_loaded_blocks_total") >= 7
    assert metrics.total("vllm:prompt_tokens_cached_by_source_total", source="host") >= 7 * BLOCK


def test_an_engine_on_another_node_goes_on_from_the_blocks(engines: Engines):
    ids = prompt(1500, 2)
    wanted = engines.expect(ids)
    assert engines.first.generate(ids, TOKENS).tokens == wanted
    time.sleep(1)  # what a node has is known to the others within a moment
    found = engines.second.generate(ids, TOKENS)
    assert (found.tokens, found.cached_tokens) == (wanted, 11 * BLOCK)
    metrics = engines.second.metrics()
    assert metrics.total("vllm:prompt_tokens_cached_by_source_total", source="p2p") >= 11 * BLOCK


def test_a_common_beginning_is_enough(engines: Engines):
    start = prompt(700, 3)
    engines.first.generate(start, TOKENS)
    time.sleep(1)
    for seed in (31, 32):
        ids = prompt(1300, seed, after=start)
        found = engines.second.generate(ids, TOKENS)
        assert (found.tokens, found.cached_tokens) == (engines.expect(ids), 5 * BLOCK)


def test_what_was_generated_is_shared_too(engines: Engines):
    ids = prompt(300, 4)
    made = engines.first.generate(ids, 300)
    whole = [*ids, *made.tokens]
    time.sleep(1)
    found = engines.second.generate(whole, TOKENS)
    assert (found.tokens, found.cached_tokens) == (engines.expect(whole), 4 * BLOCK)


def test_salted_prompts_stay_apart(engines: Engines):
    ids = prompt(600, 5)
    engines.first.generate(ids, TOKENS, cache_salt="mine")
    forget(engines.first)
    assert engines.first.generate(ids, TOKENS, cache_salt="other").cached_tokens == 0
    assert engines.first.generate(ids, TOKENS, cache_salt="mine").cached_tokens == 4 * BLOCK


def test_a_decode_engine_starts_from_what_a_prefill_engine_made(engines: Engines):
    """The two requests follow each other at once, as a router sends them."""
    for seed in range(60, 66):
        ids = prompt(900, seed)
        body = {"model": engine.MODEL_NAME, "prompt": ids, "max_tokens": 1, "temperature": 0}
        answer = engines.first.ask(
            "/v1/completions", {**body, "kv_transfer_params": {"do_remote_decode": True}}
        )
        assert isinstance(answer, dict)
        told = answer["kv_transfer_params"]
        assert told["tensorcast"]["blocks"] == 7
        before = engines.second.metrics().total("vllm:tensorcast_kv_loaded_blocks_total")
        found = engines.second.generate(ids, TOKENS, kv_transfer_params=told)
        after = engines.second.metrics().total("vllm:tensorcast_kv_loaded_blocks_total")
        assert (found.tokens, after - before) == (engines.expect(ids), 7)


def test_many_requests_at_once(engines: Engines):
    prompts = [prompt(200 + 350 * n, 70 + n) for n in range(8)]
    wanted = [engines.expect(ids) for ids in prompts]
    for one in (engines.first, engines.second):
        assert [found.tokens for found in generate_all(one, prompts)] == wanted
        time.sleep(1)
    forget(engines.first)
    forget(engines.second)
    for one in (engines.first, engines.second):
        found = generate_all(one, prompts)
        assert [one.tokens for one in found] == wanted
        assert [one.cached_tokens for one in found] == [len(p) // BLOCK * BLOCK for p in prompts]


def generate_all(one: engine.Engine, prompts: list[list[int]]) -> list[engine.Completion]:
    """All at the same time."""
    found: list[engine.Completion | None] = [None] * len(prompts)

    def ask(n: int) -> None:
        found[n] = one.generate(prompts[n], TOKENS)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert None not in found, "a request failed"
    return [one for one in found if one is not None]


@pytest.mark.parametrize("killed", ["n1", "n2"])
def test_a_mover_that_is_killed_costs_time_only(engines: Engines, killed: str):
    """`n1` has the blocks that the second engine loads, and takes those that the first one saves;
    `n2` is the second one's own."""
    chosen = random.Random(killed)
    for round_ in range(3):
        prompts = [prompt(chosen.randrange(300, 2500), chosen.randrange(10**9)) for _ in range(8)]
        wanted = [engines.expect(ids) for ids in prompts]
        generate_all(engines.first, prompts[:4])
        time.sleep(1)
        pid = engines.cluster.pid(killed)
        timer = threading.Timer(chosen.uniform(0.0, 0.06), os.kill, (pid, signal.SIGKILL))
        timer.start()
        found = generate_all(engines.second, prompts)
        timer.join()
        assert [one.tokens for one in found] == wanted, round_
        engines.cluster.wait_healthy()
    ids = prompt(800, 99 + len(killed))
    engines.first.generate(ids, TOKENS)
    found = wait_for_hit(lambda: reload(engines.second, ids), 6 * BLOCK)
    assert found.cached_tokens == 6 * BLOCK  # both are shared with again
    assert found.tokens == engines.expect(ids)


def reload(one: engine.Engine, ids: list[int]) -> engine.Completion:
    forget(one)
    return one.generate(ids, TOKENS)


def test_a_mover_that_hangs_is_waited_for_a_moment(engines: Engines):
    ids, pid = prompt(900, 90), engines.cluster.pid("n2")
    wanted = engines.expect(ids)
    os.kill(pid, signal.SIGSTOP)
    try:
        begin = time.monotonic()
        assert engines.second.generate(ids, TOKENS).tokens == wanted
        assert time.monotonic() - begin < 20  # not the 30 s of a usual client
    finally:
        os.kill(pid, signal.SIGCONT)
    engines.cluster.wait_healthy()


def test_other_weights_see_none_of_it(engines: Engines, start_engine):
    ids = prompt(1000, 100)
    engines.first.generate(ids, TOKENS)
    env = {k: v for k, v in engines.cluster.env.items() if k.startswith("TENSORCAST_")}
    other = start_engine(tiny_model(seed=1), *flags(node="n1"), env=env)
    try:
        found = other.generate(ids, TOKENS)
        assert found.cached_tokens == 0
        assert found.tokens != engines.expect(ids)
        assert reload(other, ids).cached_tokens == 7 * BLOCK  # its own
        assert reload(other, ids).tokens == found.tokens
    finally:
        other.stop()


def test_three_processes_and_two_ranks(engines: Engines, start_engine):
    env = {k: v for k, v in engines.cluster.env.items() if k.startswith("TENSORCAST_")}
    env |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_CPU_OMP_THREADS_BIND": "0|1"}
    two = start_engine(tiny_model(), *flags(node="n1"), "--tensor-parallel-size", "2", env=env)
    try:
        ids = prompt(1000, 110)
        wanted = two.generate(ids, TOKENS)
        assert wanted.cached_tokens == 0
        # Blocks of a new size may need new memory, which can take a machine longer than an engine
        # waits: then the first of them are not kept.
        found = wait_for_hit(lambda: reload(two, ids), 7 * BLOCK)
        assert (found.tokens, found.cached_tokens) == (wanted.tokens, 7 * BLOCK)
    finally:
        two.stop()


def test_after_a_weight_update_the_blocks_of_before_are_never_read(engines: Engines, start_engine):
    env = {k: v for k, v in engines.cluster.env.items() if k.startswith("TENSORCAST_")}
    updated = start_engine(
        tiny_model(),
        *flags(node="n1"),
        *("--weight-transfer-config", '{"backend":"tensorcast"}'),
        env=env,
    )
    try:
        update_and_compare(engines, updated)
    finally:
        updated.stop()


def context_of(cluster: Cluster) -> Context:
    """How this process reaches the cluster, whose settings are in its environment only."""
    return resolve_context(None, None, cluster.env)


def loads(one: engine.Engine) -> list[float]:
    """What was found, and what of it came and what did not."""
    metrics, kinds = one.metrics(), ("hit_blocks", "loaded_blocks", "failed_blocks")
    return [metrics.total(f"vllm:tensorcast_kv_{kind}_total") for kind in kinds]


def update_and_compare(engines: Engines, updated: engine.Engine) -> None:
    ids, other = prompt(1000, 120), prompt(1000, 121)
    wanted = engines.expect(ids)
    assert updated.generate(ids, TOKENS).tokens == wanted
    assert reload(updated, ids).cached_tokens == 7 * BLOCK
    with tc.connect(context_of(engines.cluster), node="n1") as client:
        for seed in (1, 0):
            state = load_file(tiny_model(seed) / "model.safetensors")
            update_engines(client, [updated.url], client.publish("kv-test", state))
            before = loads(updated)
            found = updated.generate(ids, TOKENS)
            assert (found.tokens == wanted) == (seed == 0)
            assert (found.cached_tokens, loads(updated)) == (0, before)
            assert reload(updated, ids).tokens == found.tokens
            assert reload(updated, ids).cached_tokens == 7 * BLOCK
            updated.generate(other, TOKENS)
