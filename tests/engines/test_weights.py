"""A real vLLM whose weights come from the node's replica."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from models import tiny_model
from quantised import make_gptq
from stack import running_stack

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.timeout(400)]
PROMPT = "the quick brown fox jumps over the lazy dog " * 20
GIVEN = re.compile(
    r"gave the weights (\S+) .* (\d+) parameters of ([\d.]+) MiB in place, ([\d.]+) MiB copied,"
    r" ([\d.]+)"
)


@pytest.fixture(scope="module")
def cluster(tiny):
    """Two nodes; the model is on the first."""
    with running_stack(None) as running:
        running.start_mover("n1", dram_bytes=256 << 20)
        running.start_mover("n2", dram_bytes=256 << 20)
        with running.connect("n1") as client:
            client.put(tiny, key="tiny@1")
        yield running


@pytest.fixture(scope="module")
def bare(cluster, tmp_path_factory) -> Path:
    """A folder with the model's files and no weights, for a machine with nothing on disk."""
    folder = tmp_path_factory.mktemp("bare")
    with cluster.connect("n1") as client:
        client.write_files("tiny@1", folder)
    return folder


def surroundings(cluster, node: str) -> dict[str, str]:
    return {
        "TENSORCAST_CLUSTER": "test",
        "TENSORCAST_NATS_URL": cluster.nats.url,
        "TENSORCAST_SOCKET": str(cluster.socket(node)),
        "TENSORCAST_NODE": node,
    }


def flags(**options: object) -> tuple[str, ...]:
    return ("--load-format", "tensorcast", "--model-loader-extra-config", json.dumps(options))


def given(engine) -> tuple[str, int, float, float, float]:
    """What the log says of the weights: key, parameters in place, MiB in place, copied, other."""
    key, count, *sizes = GIVEN.search(engine.log_text()).groups()
    return key, int(count), *map(float, sizes)


@pytest.fixture(scope="module")
def expected(start_engine, tiny):
    """What vLLM's own loader makes of the model."""
    return serve(start_engine(tiny))


def serve(engine):
    """One answer of an engine, which then ends."""
    try:
        return engine.generate(PROMPT, logprobs=True)
    finally:
        engine.stop()


def same(found, expected) -> bool:
    return (found.tokens, found.logprobs) == (expected.tokens, expected.logprobs)


def test_weights_come_from_the_node_without_a_file_of_them(start_engine, cluster, bare, expected):
    engine = start_engine(bare, *flags(key="tiny@1"), env=surroundings(cluster, "n1"))
    assert same(engine.generate(PROMPT, logprobs=True), expected)
    key, count, _, copied, other = given(engine)
    assert (key, copied, other) == ("tiny@1", 0, 0)
    assert count > 0
    with cluster.connect("n1") as client:
        client.put(tiny_model(seed=1), key="tiny@2")
    assert reload(engine, "tiny@2").tokens != expected.tokens
    assert same(reload(engine, "tiny@1"), expected)
    engine.stop()


def reload(engine, key: str):
    """What an engine answers after vLLM's own reload, by the name of other weights."""
    named = {"method": "reload_weights", "kwargs": {"weights_path": key}}
    engine.ask("/collective_rpc", named)
    engine.ask("/reset_prefix_cache", {}, "POST")
    return engine.generate(PROMPT, logprobs=True)


def test_a_node_without_them_pulls_them_and_the_folder_says_which(
    start_engine, cluster, bare, expected
):
    flag = ("--load-format", "tensorcast")
    engine = start_engine(bare, *flag, env=surroundings(cluster, "n2"))
    assert same(serve(engine), expected)
    with cluster.connect("n1") as client:
        assert given(engine)[0] == client.follow("tiny@1").artifact


def test_two_ranks_share_one_replica(start_engine, cluster, bare, expected):
    two = {
        **surroundings(cluster, "n1"),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "0|1",
    }
    engine = start_engine(bare, *flags(key="tiny@1"), "--tensor-parallel-size", "2", env=two)
    assert serve(engine).tokens == expected.tokens
    told = GIVEN.findall(engine.log_text())
    assert [key for key, *_ in told] == ["tiny@1"] * 2
    for _, count, in_place, copied, other in told:
        assert int(count) > 0
        assert float(other) == 0
        assert float(in_place) + float(copied) < 0.6 * 20  # MiB: about half of the model each


def test_without_the_layer_the_checkpoint_on_disk_serves(start_engine, tiny, expected, tmp_path):
    away = {"TENSORCAST_SOCKET": str(tmp_path / "none.sock"), "TENSORCAST_NODE": "n9"}
    engine = start_engine(tiny, *flags(key="tiny@1"), env=away)
    assert same(serve(engine), expected)
    assert "TensorCast has no weights tiny@1 for this engine" in engine.log_text()
    assert "it loads the checkpoint on disk" in engine.log_text()


def test_four_bits_load_as_from_the_disk(start_engine, cluster, tiny, tmp_path):
    model = make_gptq(tiny, tmp_path / "gptq")
    with cluster.connect("n1") as client:
        client.put(model, key="gptq@1")
        client.write_files("gptq@1", tmp_path / "bare")
    narrow = ("--dtype", "bfloat16")
    expected = serve(start_engine(model, *narrow))
    engine = start_engine(
        tmp_path / "bare", *narrow, *flags(key="gptq@1"), env=surroundings(cluster, "n1")
    )
    assert same(serve(engine), expected)
