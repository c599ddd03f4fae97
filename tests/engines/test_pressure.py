"""A real engine with little memory: for its own cache, so that it preempts requests, and on its
node, so that blocks go to the disk. The tokens are those that it computes by itself."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

import engine
from cluster import Cluster, running_cluster
from models import tiny_model
from tensorcast.engines.vllm.connector.counters import NAMES
from test_connector import BLOCK, flags, forget, prompt

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.timeout(400)]

BLOCK_BYTES = 512 << 10
CACHE_BLOCKS = 48
NODE_BLOCKS = 128
TOKENS, LONG = 12, 250


@dataclass
class Tight:
    """An engine with 48 blocks of its own, on a node with memory for 128 of them."""

    cluster: Cluster
    engine: engine.Engine

    def compute(self, ids: list[int], tokens: int = TOKENS) -> tuple[int, ...]:
        """What the engine makes of a prompt by itself: nobody has blocks with this salt."""
        salt = f"{random.random()}"
        found = self.engine.generate(ids, tokens, cache_salt=salt)
        assert found.cached_tokens == 0
        return found.tokens

    def total(self, name: str, **labels: str) -> float:
        return self.engine.metrics().total(f"vllm:{name}", **labels)


@pytest.fixture(scope="module")
def tight() -> Iterator[Tight]:
    if not engine.PYTHON.exists():
        pytest.skip("needs a real engine: scripts/test engines")
    folder = Path(tempfile.mkdtemp(prefix="tc-pressure-"))
    memory = {
        "TENSORCAST_KV_BYTES": str(NODE_BLOCKS * BLOCK_BYTES),
        "TENSORCAST_KV_DISK_BYTES": str(1 << 30),
    }
    try:
        with running_cluster(folder / "cluster", 1, **memory) as cluster:
            env = {k: v for k, v in cluster.env.items() if k.startswith("TENSORCAST_")}
            small = ("--kv-cache-memory-bytes", str(CACHE_BLOCKS * BLOCK_BYTES))
            with engine.start(tiny_model(), folder / "e", *flags(), *small, env=env) as one:
                yield Tight(cluster, one)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_blocks_come_back_from_the_disk_also_after_a_restart_of_the_cluster(tight: Tight):
    prompts = [prompt(2000, 300 + seed) for seed in range(14)]  # 210 blocks
    wanted = [tight.compute(ids) for ids in prompts[:3]]
    for ids in prompts:
        tight.engine.generate(ids, TOKENS)
    wait_for_spill(tight.cluster, len(prompts) * 15 - NODE_BLOCKS)
    assert reload(tight, prompts[:3]) == wanted
    tight.cluster.tcctl("down", "--data-dir", str(tight.cluster.home))
    tight.cluster.up(1)
    tight.cluster.wait_healthy()
    assert reload(tight, prompts[:3]) == wanted


def wait_for_spill(cluster: Cluster, blocks: int) -> None:
    """Until so many blocks have left the memory for the disk."""
    for _ in range(200):
        (space,) = cluster.ask("kv", "ls")
        if space["nodes"]["n1"].get("disk", {}).get("blocks", 0) >= blocks:
            return
        time.sleep(0.1)
    raise AssertionError(space)


def reload(tight: Tight, prompts: list[list[int]]) -> list[tuple[int, ...]]:
    """What the engine makes of prompts whose blocks are on the disk only."""
    forget(tight.engine)
    before = tight.total("prompt_tokens_cached_by_source_total", source="disk")
    found = [tight.engine.generate(ids, TOKENS) for ids in prompts]
    after = tight.total("prompt_tokens_cached_by_source_total", source="disk")
    whole = [len(ids) // BLOCK * BLOCK for ids in prompts]
    assert [one.cached_tokens for one in found] == whole
    assert after - before == sum(whole)
    return [one.tokens for one in found]


def test_preempted_requests_give_the_right_tokens(tight: Tight):
    """Ten requests need 80 blocks in the end. The second time they begin with what was saved."""
    prompts = [prompt(700, 400 + seed) for seed in range(10)]
    wanted = [tight.compute(ids, LONG) for ids in prompts]
    for cached_tokens in (0, 5 * BLOCK):
        forget(tight.engine)
        before = tight.total("num_preemptions_total")
        with ThreadPoolExecutor(len(prompts)) as pool:
            found = list(pool.map(lambda ids: tight.engine.generate(ids, LONG), prompts))
        assert tight.total("num_preemptions_total") > before
        assert [one.tokens for one in found] == wanted
        assert min(one.cached_tokens for one in found) == cached_tokens


def test_what_the_connector_counts_is_shown(tight: Tight):
    """After all that each counter that it concerns has grown, and every one is there."""
    grown = ("lookups", "hit_blocks", "loaded_blocks", "loaded_bytes", "load_s")
    grown += ("saved_blocks", "saved_bytes", "save_s")
    for name in grown:
        assert tight.total(f"tensorcast_kv_{name}_total") > 0, name
    loaded = tight.total("tensorcast_kv_loaded_bytes_total")
    assert loaded == tight.total("tensorcast_kv_loaded_blocks_total") * BLOCK_BYTES
    shown = set(tight.engine.metrics().names())
    assert {f"vllm:tensorcast_kv_{name}_total" for name in NAMES} <= shown
    assert "KV Transfer metrics: " in tight.engine.log_text()
