"""The examples and the benchmark of `get`, run as a reader would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from cluster import running_cluster
from s3 import s3_server
from script_host import ScriptHost, script_host

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
WITH_ENGINES = ("vllm_kv.py", "vllm_plan.py", "vllm_prefill_decode.py")
"""Those that start engines, which `scripts/test engines` has."""
EXAMPLES = sorted({path.name for path in (ROOT / "examples").glob("*.py")} - set(WITH_ENGINES))
ONCE = ("10_weights.py",)
"""Those that take long, as they start processes."""
ALONE = ("06_load_checkpoint.py",)
"""Those that need no cluster."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Two nodes that share a store."""
    folder = tmp_path_factory.mktemp("examples")
    with s3_server() as server:
        server.make_bucket("bucket")
        store = {**server.environ, "TENSORCAST_OBJECT_URL": "s3://bucket/replicas"}
        with running_cluster(folder, 2, **store) as running:
            yield running


@pytest.fixture(scope="module")
def host(tmp_path_factory) -> Iterator[ScriptHost]:
    with script_host(tmp_path_factory.mktemp("host")) as host:
        yield host


def run(cluster, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        env=dict(cluster.env),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in ALONE])
def test_without_a_cluster_they_say_so_in_a_sentence(host, name, tmp_path):
    environ = {**os.environ, "TENSORCAST_CONFIG_DIR": str(tmp_path)}
    done = host.run(str(ROOT / "examples" / name), environ=environ)
    assert done.code == 1
    assert done.err.startswith("Error: No cluster is known on this machine.")


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in ONCE])
def test_an_example_runs_and_runs_again(host, cluster, name):
    for _ in range(2):
        done = host.run(str(ROOT / "examples" / name), environ=cluster.env)
        assert done.code == 0, done.err
        assert done.err == ""
        assert done.out


@pytest.mark.parametrize("name", ONCE)
def test_an_example_that_starts_processes_runs(cluster, name):
    assert run(cluster, str(ROOT / "examples" / name))


def test_a_checkpoint_goes_through_a_store(cluster, tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.arange(3 << 18), "b": torch.ones(5, dtype=torch.bfloat16)}, path)
    put = cluster.ask("put", str(path), "--key", "m@1", "--node", "n1")
    out = cluster.ask("get", "m@1", "s3://bucket/out/", "--node", "n1")
    assert out["path"] == "s3://bucket/out/model.safetensors"
    again = cluster.ask("put", "s3://bucket/out/", "--key", "m@2", "--node", "n2")
    assert {again["id"], out["artifact"]} == {put["id"]}
    show = run(cluster, str(ROOT / "examples" / ALONE[0]), "s3://bucket/out")
    assert "equal   True" in show
    wanted = ("replicate", "m@1", "--to", "n1", "--tier", "object", "--wait", "--timeout", "60")
    assert cluster.ask(*wanted)["state"] == "succeeded"
    replicas = cluster.ask("artifact", "where", "m@1")["replicas"]
    assert ("n1", "object") in {(one["node"], one["tier"]) for one in replicas}
    cluster.tcctl("artifact", "verify", "m@1", "--timeout", "60")


def test_get_on_the_node_is_quick_and_takes_no_memory(cluster):
    """The limits of the benchmark: 20 ms, 50 MiB. It exits with 1 when one is missed."""
    script = str(ROOT / "benchmarks" / "get_local.py")
    found = json.loads(run(cluster, script, "--gib", "1", "--rounds", "20", "--json"))
    assert found["within_limits"]
