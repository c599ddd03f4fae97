"""A real vLLM whose weights come from the node's replica."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from stack import running_stack

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.timeout(400)]
PROMPT = "the quick brown fox jumps over the lazy dog " * 20
GIVEN = re.compile(
    r"gave the weights (\S+) .* (\d+) parameters of ([\d.]+) MiB in place, ([\d.]+) MiB copied, ([\d.]+)"
)  # noqa: E501


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
    """A folder with the model's files and no weights, as a machine with nothing on disk gets it."""
    from tensorcast.client.model_files import write_files

    folder = tmp_path_factory.mktemp("bare")
    with cluster.connect("n1") as client:
        write_files(client.files("tiny@1"), folder, force=False)
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
    engine = start_engine(tiny)
    try:
        return engine.generate(PROMPT, logprobs=True)
    finally:
        engine.stop()


def test_weights_come_from_the_node_without_a_file_of_them(start_engine, cluster, bare, expected):
    engine = start_engine(bare, *flags(key="tiny@1"), env=surroundings(cluster, "n1"))
    found = engine.generate(PROMPT, logprobs=True)
    assert (found.tokens, found.logprobs) == (expected.tokens, expected.logprobs)
    key, count, in_place, copied, other = given(engine)
    assert (key, copied, other) == ("tiny@1", 0, 0)
    assert count > 0
    engine.stop()


def test_a_node_without_them_pulls_them_from_its_peer(start_engine, cluster, bare, expected):
    engine = start_engine(bare, *flags(key="tiny@1"), env=surroundings(cluster, "n2"))
    assert engine.generate(PROMPT).tokens == expected.tokens
    engine.stop()
