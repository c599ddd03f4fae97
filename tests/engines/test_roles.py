"""A prefill engine on one node, a decode engine on another, and a router in front of them."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import engine
from cluster import running_cluster
from models import ROOT, tiny_model
from test_connector import BLOCK, flags, prompt

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.timeout(400)]

TOKENS = 12
ROUTER = ROOT / "examples" / "vllm_prefill_decode.py"


@dataclass
class Pair:
    """`router` is asked as an engine is."""

    prefill: engine.Engine
    decode: engine.Engine
    router: engine.Engine

    def expect(self, ids: list[int]) -> tuple[int, ...]:
        """What the decode engine makes of a prompt by itself: nobody has blocks with this salt."""
        return self.decode.generate(ids, TOKENS, cache_salt=f"{random.random()}").tokens


def counted(one: engine.Engine, *names: str) -> list[float]:
    metrics = one.metrics()
    return [metrics.total(f"vllm:tensorcast_kv_{name}_total") for name in names]


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    if not engine.PYTHON.exists():
        pytest.skip("needs a real engine: scripts/test engines")
    folder = Path(tempfile.mkdtemp(prefix="tc-roles-"))
    started: list[engine.Engine] = []
    roles = {"n1": "kv_producer", "n2": "kv_consumer"}
    try:
        with running_cluster(folder / "cluster", 2) as cluster:
            env = {k: v for k, v in cluster.env.items() if k.startswith("TENSORCAST_")}
            for node, role in roles.items():
                more = flags(role, node=node)
                started.append(engine.launch(tiny_model(), folder / node, *more, env=env))
            prefill, decode = [one.wait_ready() for one in started]
            port = engine.free_port()
            command = [sys.executable, "-P", str(ROUTER), prefill.url, decode.url, str(port)]
            with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
                router = replace(decode, url=f"http://127.0.0.1:{port}", process=process)
                router.wait_ready(20)
                yield Pair(prefill, decode, router)
                process.kill()
    finally:
        for one in started:
            one.stop()
        shutil.rmtree(folder, ignore_errors=True)


def test_the_decode_engine_begins_with_the_blocks_of_the_prefill_engine(pair: Pair):
    for seed in range(5):
        ids = prompt(900, 500 + seed)
        before = counted(pair.decode, "loaded_blocks")
        found = pair.router.generate(ids, TOKENS)
        (loaded,) = counted(pair.decode, "loaded_blocks")
        assert (found.tokens, loaded - before[0]) == (pair.expect(ids), 7)


def test_each_does_its_part_only(pair: Pair):
    ids = prompt(700, 510)
    pair.router.generate(ids, 300)
    pair.prefill.ask("/reset_prefix_cache", method="POST")
    pair.prefill.generate(ids, TOKENS)
    assert counted(pair.prefill, "loaded_blocks") == [0]
    assert counted(pair.decode, "saved_blocks") == [0]


def test_many_requests_at_once(pair: Pair):
    prompts = [prompt(300 + 200 * n, 520 + n) for n in range(8)]
    wanted = [pair.expect(ids) for ids in prompts]
    with ThreadPoolExecutor(len(prompts)) as pool:
        found = list(pool.map(lambda ids: pair.router.generate(ids, TOKENS), prompts))
    assert [one.tokens for one in found] == wanted


def test_chats_are_answered_whole_as_by_one_engine(pair: Pair):
    said = [{"role": "user", "content": "the quick brown fox jumps over the lazy dog " * 30}]
    body = {"model": engine.MODEL_NAME, "messages": said, "max_completion_tokens": TOKENS}
    body |= {"temperature": 0, "ignore_eos": True}
    (before,) = counted(pair.decode, "loaded_blocks")
    by_both = pair.router.ask("/v1/chat/completions", body)
    (after,) = counted(pair.decode, "loaded_blocks")
    by_one = pair.decode.ask("/v1/chat/completions", {**body, "cache_salt": "alone"})
    assert by_both["choices"][0]["message"] == by_one["choices"][0]["message"]
    assert after - before == by_both["usage"]["prompt_tokens"] // BLOCK > 0


def test_what_is_wrong_with_a_request_is_said_by_the_decode_engine(pair: Pair):
    with pytest.raises(AssertionError, match=r"400 .*prompt"):
        pair.router.ask("/v1/completions", {"model": engine.MODEL_NAME, "max_tokens": 1})


def test_without_the_prefill_engine_the_decode_engine_computes(pair: Pair):
    pair.prefill.kill()
    ids = prompt(900, 540)
    begin = time.monotonic()
    assert pair.router.generate(ids, TOKENS).tokens == pair.expect(ids)
    assert time.monotonic() - begin < engine.ANSWER_S_MAX
