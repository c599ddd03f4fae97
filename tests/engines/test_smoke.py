"""The smallest proof that real engines work with this layer, for machines that run everything:
weights and KV blocks of one engine on one node serve another engine on another node."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import engine
from stack import Stack, running_stack

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.timeout(400)]

SAVED_S_MAX = 30.0
BLOCK = 128
NODES = ("n1", "n2")
CONNECTOR = {
    "kv_connector": "TensorCastConnector",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
}


@pytest.fixture(scope="module")
def nodes(tiny: Path) -> Iterator[Stack]:
    """Two nodes; the model is on the first."""
    if not engine.PYTHON.exists():
        pytest.skip("needs a real engine: scripts/test engines")
    with running_stack(None) as running:
        for node in NODES:
            running.start_mover(node, dram_bytes=256 << 20)
        with running.connect("n1") as client:
            client.put(tiny, key="tiny@1")
        yield running


@pytest.fixture(scope="module")
def engines(nodes: Stack, tmp_path_factory) -> Iterator[list[engine.Engine]]:
    """One on each node, with no weights on their disk."""
    bare = tmp_path_factory.mktemp("bare")
    with nodes.connect("n1") as client:
        client.write_files("tiny@1", bare)
    options = json.dumps({"key": "tiny@1", "fallback": False})
    flags = ("--load-format", "tensorcast", "--model-loader-extra-config", options)
    started = [
        engine.launch(
            bare,
            tmp_path_factory.mktemp(node),
            *flags,
            *("--kv-transfer-config", json.dumps(CONNECTOR)),
            env=surroundings(nodes, node),
        )
        for node in NODES
    ]
    try:
        yield [one.wait_ready() for one in started]
    finally:
        for one in started:
            one.stop()


def surroundings(nodes: Stack, node: str) -> dict[str, str]:
    return {
        "TENSORCAST_CLUSTER": "test",
        "TENSORCAST_NATS_URL": nodes.nats.url,
        "TENSORCAST_SOCKET": str(nodes.socket(node)),
        "TENSORCAST_NODE": node,
    }


def test_weights_and_blocks_of_one_engine_serve_another(engines: list[engine.Engine]):
    first, second = engines
    for one in engines:
        assert re.search(r"TensorCast gave the weights tiny@1 \(artifact \w+\)", one.log_text())
    chosen = random.Random(1)
    ids = [chosen.randrange(5, 4000) for _ in range(8 * BLOCK + 5)]
    computed = first.generate(ids, 16)
    deadline = time.monotonic() + SAVED_S_MAX  # its blocks are saved beside the answer
    while first.metrics().total("vllm:tensorcast_kv_saved_blocks_total") < 8:
        assert time.monotonic() < deadline, "the blocks were not saved"
        time.sleep(0.2)
    time.sleep(2.0)  # the other node hears of them
    loaded = second.generate(ids, 16)
    assert loaded.tokens == computed.tokens
    assert (computed.cached_tokens, loaded.cached_tokens) == (0, 8 * BLOCK)
    assert second.metrics().total("vllm:external_prefix_cache_hits_total") == 8 * BLOCK
