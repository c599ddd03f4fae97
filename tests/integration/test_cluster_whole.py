"""The whole path on a real cluster: put, fan out, read back, explain, replay."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import tensorcast as tc
from cluster import TCCTL, Cluster, running_cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

TENSORS = 300
TENSOR_ELEMENTS = (1 << 30) // TENSORS // 2


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("whole"), 3) as running:
        yield running


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1 GiB in 300 bf16 tensors, each different in every chunk."""
    generator = torch.Generator().manual_seed(7)
    base = torch.randint(0, 2**15, (TENSOR_ELEMENTS,), dtype=torch.int16, generator=generator)
    tensors = {f"model.layers.{i}.weight": (base + i).view(torch.bfloat16) for i in range(TENSORS)}
    path = tmp_path_factory.mktemp("checkpoint") / "model.safetensors"
    save_file(tensors, path)
    return path


READ_BACK = """
import sys, torch, tensorcast as tc
from safetensors import safe_open
key, path, node = sys.argv[1:]
with tc.connect(node=node) as client:
    tensors = client.get(key)
with safe_open(path, "pt") as original:
    names = set(original.keys())
    assert names == set(tensors), names ^ set(tensors)
    for name in names:
        expected = original.get_tensor(name)
        assert tensors[name].dtype == expected.dtype
        assert torch.equal(tensors[name].view(torch.int16), expected.view(torch.int16)), name
"""


def test_gib_over_three_nodes_is_exact_and_explained(cluster: Cluster, checkpoint: Path) -> None:
    put = cluster.ask("put", str(checkpoint), "--key", "big@1", "--node", "n1")
    artifact = put["id"]
    cluster.tcctl("replicate", "big@1", "--to", "all", "--wait", "--timeout", "100")
    where = cluster.ask("artifact", "where", "big@1")
    ready = {r["node"] for r in where["replicas"] if r["state"] == "ready" and r["tier"] == "dram"}
    assert ready == {"n1", "n2", "n3"}
    for node in ("n2", "n3"):
        subprocess.run(
            [sys.executable, "-c", READ_BACK, "big@1", str(checkpoint), node],
            env=dict(cluster.env),
            check=True,
            timeout=200,
        )
    events = cluster.ask("artifact", "history", "big@1")
    by_id = {event["id"]: event for event in events}
    for node in ("n2", "n3"):
        (last,) = [
            e
            for e in events
            if e["type"] == "replica.ready" and e["data"]["replica"] == f"{artifact}:{node}:dram"
        ]
        chain = []
        while last is not None:
            chain.append((last["type"], last["actor"]))
            last = by_id.get(last["cause"])
        types = [event_type for event_type, _ in chain]
        assert types == [
            "replica.ready",
            "operation.started",
            "operation.issued",
            "artifact.replicas_requested",
        ]
        assert chain[2][1] == "policy:replicate"
        assert chain[3][1].startswith("user:")


def test_replay_shows_the_moment_before_the_fan_out(cluster: Cluster, checkpoint: Path) -> None:
    cluster.tcctl("put", str(checkpoint), "--key", "big@1", "--node", "n1")
    cluster.tcctl("replicate", "big@1", "--to", "all", "--wait", "--timeout", "100")
    events = cluster.ask("artifact", "history", "big@1")
    sealed = next(e["seq"] for e in events if e["type"] == "artifact.sealed")
    requested = next(e["seq"] for e in events if e["type"] == "artifact.replicas_requested")
    before = cluster.ask("replay", "--to", str(requested - 1), "artifact", "big@1")
    assert before["at_seq"] == requested - 1
    (artifact,) = before["artifacts"]
    assert [r["node"] for r in artifact["replicas"]] == ["n1"]
    nothing = cluster.ask("replay", "--to", str(sealed - 1))
    assert nothing["artifacts"] == []
    status = cluster.ask("status")
    now = cluster.ask("replay", "--to", str(status["committed_seq"]), "artifact", "big@1")
    assert {r["node"] for r in now["artifacts"][0]["replicas"]} == {"n1", "n2", "n3"}


def test_down_and_up_lose_nothing(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "small.safetensors"
    save_file({"a": torch.arange(1 << 20), "b": torch.ones(3, dtype=torch.bool)}, path)
    cluster.tcctl("put", str(path), "--key", "small@1", "--node", "n2")
    events = cluster.ask("artifact", "history", "small@1")
    cluster.tcctl("down", "--data-dir", str(cluster.home))
    assert cluster.tcctl("artifact", "ls", code=6).err
    cluster.up(3)
    cluster.tcctl("get", "small@1", str(tmp_path / "back.safetensors"), "--node", "n2")
    back = load_file(tmp_path / "back.safetensors")
    assert torch.equal(back["a"], torch.arange(1 << 20))
    assert torch.equal(back["b"], torch.ones(3, dtype=torch.bool))
    assert cluster.ask("artifact", "history", "small@1")[: len(events)] == events
    states = {
        r["node"]: r["state"] for r in cluster.ask("artifact", "where", "small@1")["replicas"]
    }
    assert states == {"n2": "ready"}


def test_a_purge_does_not_save_what_it_deletes(tmp_path: Path) -> None:
    path = tmp_path / "small.safetensors"
    save_file({"a": torch.arange(1 << 20)}, path)
    with running_cluster(tmp_path, 1) as small:
        small.tcctl("put", str(path), "--key", "small@1")
        done = small.tcctl("down", "--data-dir", str(small.home), "--purge", "--yes")
        assert "to disk" not in done.out + done.err
        assert not small.home.exists()


def often(service: str):
    return pytest.param(service, marks=pytest.mark.long)


@pytest.mark.parametrize("service", ["n1", *map(often, ("nats", "postgres", "controlplane", "n2"))])
def test_any_process_may_die_in_the_middle_of_a_fan_out(
    cluster: Cluster, tmp_path: Path, service: str
) -> None:
    path = tmp_path / "model.safetensors"
    save_file(
        {f"w{i}": torch.randint(0, 255, (1 << 24,), dtype=torch.uint8) for i in range(24)}, path
    )
    key = f"dying-{service}"
    cluster.wait_healthy()
    cluster.tcctl("put", str(path), "--key", key, "--node", "n1")
    fan_out = subprocess.Popen(
        [TCCTL, "replicate", key, "--to", "n2,n3", "--wait", "--timeout", "100"],
        env=dict(cluster.env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until_filling(cluster, key)
    dead = cluster.kill(service)
    out, err = fan_out.communicate(timeout=110)
    assert fan_out.returncode == 0, (out, err)
    cluster.wait_healthy()
    assert cluster.pid(service) != dead
    for node in ("n2", "n3"):
        cluster.tcctl("get", key, str(tmp_path / f"{node}.safetensors"), "--node", node)
        original, back = load_file(path), load_file(tmp_path / f"{node}.safetensors")
        assert original.keys() == back.keys()
        assert all(torch.equal(original[name], back[name]) for name in original)
    check_log(cluster)
    cluster.tcctl("artifact", "rm", key, "--force")


def wait_until_filling(cluster: Cluster, key: str) -> None:
    """Returns as soon as an operation of the fan-out runs (or all is over already)."""
    with connect(cluster) as client:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            others = [r for r in client.artifact(key).replicas() if r.node != "n1"]
            if any(r.chunks_ready for r in others):
                return
            time.sleep(0.005)
    raise AssertionError("the fan-out did not begin")


def connect(cluster: Cluster) -> tc.Client:
    os.environ["TENSORCAST_CONFIG_DIR"] = cluster.env["TENSORCAST_CONFIG_DIR"]
    return tc.connect()


def check_log(cluster: Cluster) -> None:
    """Every position of the log is in Postgres exactly once."""
    with connect(cluster) as client:
        last = client.api.status().last_seq
    deadline = time.monotonic() + 20
    while cluster.ask("status")["committed_seq"] < last and time.monotonic() < deadline:
        time.sleep(0.2)
    events = cluster.ask("audit", "log", "--limit", "100000")
    assert [e["seq"] for e in events][:last] == list(range(1, last + 1))
