"""A real vLLM whose weights come from the node's replica."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from engine import (
    ENVIRONMENT,
    PYTHON,
    SERVER,
    WORKERS,
    Engine,
    clean_environment,
    free_port,
    launch,
)
from models import tiny_model
from quantised import make_fp8, make_fp8_channels, make_gptq, make_int4, make_int8
from stack import running_stack

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.timeout(400)]
PROMPT = "the quick brown fox jumps over the lazy dog " * 20
GIVEN = re.compile(
    r"gave the weights (\S+) .* (\d+) parameters of ([\d.]+) MiB in place, ([\d.]+) MiB copied,"
    r" ([\d.]+)"
)


BROUGHT = re.compile(r"brought ([\d.]+) MiB of the weights' ([\d.]+) MiB")
NEW_NODES = ("n3", "n4")


@pytest.fixture(scope="module")
def cluster(tiny):
    """Four nodes; the model is on the first."""
    with running_stack(None) as running:
        for node in ("n1", "n2", *NEW_NODES):
            running.start_mover(node, dram_bytes=256 << 20)
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


@pytest.mark.parametrize(
    ("parallel", "share"), [("--tensor-parallel-size", 0.9), ("--pipeline-parallel-size", 0.65)]
)
def test_ranks_on_two_machines_bring_what_they_need_and_no_more(
    cluster, bare, expected, tmp_path, parallel, share
):
    """Of 20 MiB in chunks of 1 MiB a tensor-parallel rank needs all that hold half a matrix. With
    stages nothing is generated: this vLLM's runner for CPUs breaks off in the hand-over between
    them (`sync_and_gather_intermediate_tensors`), without TensorCast too."""
    both = (parallel, "2", "--master-port", str(free_port()))
    machines = [launch_machine(cluster, bare, tmp_path, both, rank) for rank in (0, 1)]
    try:
        machines[0].wait_ready()
        if parallel == "--tensor-parallel-size":
            assert machines[0].generate(PROMPT).tokens == expected.tokens
        for one, node in zip(machines, NEW_NODES, strict=True):
            (brought, whole) = map(float, BROUGHT.search(one.log_text()).groups())
            assert 0.4 * whole < brought < share * whole
            with cluster.connect(node) as client:
                assert client.stats().replicas == 0
    finally:
        for one in machines:
            one.kill()


def launch_machine(cluster, bare: Path, folder: Path, both: tuple[str, ...], rank: int) -> Engine:
    """One of two machines of an engine; each has a node of its own that has nothing."""
    place = ("--nnodes", "2", "--node-rank", str(rank), "--master-addr", "127.0.0.1", *both)
    env = surroundings(cluster, NEW_NODES[rank]) | {
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        "VLLM_CPU_OMP_THREADS_BIND": str(rank),
    }
    program = WORKERS if rank else SERVER
    more = ("--headless",) if rank else ()
    return launch(bare, folder, *flags(key="tiny@1"), *place, *more, env=env, program=program)


def test_without_the_layer_the_checkpoint_on_disk_serves(start_engine, tiny, expected, tmp_path):
    away = {"TENSORCAST_SOCKET": str(tmp_path / "none.sock"), "TENSORCAST_NODE": "n9"}
    engine = start_engine(tiny, *flags(key="tiny@1"), env=away)
    assert same(serve(engine), expected)
    assert "TensorCast has no weights tiny@1 for this engine" in engine.log_text()
    assert "it loads the checkpoint on disk" in engine.log_text()


@pytest.mark.parametrize("make", [make_gptq, make_int4, make_int8], ids=lambda one: one.__name__)
def test_quantised_weights_serve_as_from_the_disk(start_engine, cluster, tiny, tmp_path, make):
    model = make(tiny, tmp_path / "model")
    key = put_bare(cluster, model, tmp_path / "bare")
    narrow = ("--dtype", "bfloat16")
    expected = serve(start_engine(model, *narrow))
    engine = start_engine(
        tmp_path / "bare", *narrow, *flags(key=key), env=surroundings(cluster, "n1")
    )
    assert same(serve(engine), expected)


@pytest.mark.parametrize("make", [make_fp8, make_fp8_channels], ids=lambda one: one.__name__)
def test_fp8_parameters_are_those_from_the_disk(cluster, tiny, tmp_path, make):
    """Bit for bit: vLLM has no fp8 kernels for every CPU, so no engine is asked."""
    if not PYTHON.exists():
        pytest.skip("needs a real engine: scripts/test engines")
    model = make(tiny, tmp_path / "model")
    key = put_bare(cluster, model, tmp_path / "bare")
    ours = json.dumps({"key": key, "fallback": False})
    found = parameters(tmp_path / "bare", "tensorcast", ours, env=surroundings(cluster, "n1"))
    wanted = parameters(model, "auto", env={})
    assert found == wanted
    assert sum("float8_e4m3fn" in one for one in wanted.values()) == 16


def put_bare(cluster, model: Path, bare: Path) -> str:
    """Puts a model, and writes its folder without weights; the key."""
    key = f"{model.parent.name}@1"
    with cluster.connect("n1") as client:
        client.put(model, key=key)
        client.write_files(key, bare)
    return key


def parameters(model: Path, *words: str, env: dict[str, str]) -> dict[str, str]:
    """What a loader makes of a model: a digest of each parameter."""
    program = Path(__file__).with_name("parameters.py")
    surrounding = {**clean_environment(), **ENVIRONMENT, **env, "PYTHONPATH": str(program.parent)}
    done = subprocess.run(
        [str(PYTHON), "-P", str(program), str(model), *words],
        env=surrounding,
        cwd=model.parent,
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])
