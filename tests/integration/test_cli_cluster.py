"""`tcctl` against a real cluster of two nodes: JSON shapes, exit codes, bad input, signals."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from cluster import TCCTL, Cluster, running_cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

EVENT = {"seq", "id", "type", "v", "at", "actor", "cause", "data"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cli"), 2) as running:
        yield running


def write_checkpoint(path: Path, seed: int, *, mib: int = 3) -> Path:
    """A checkpoint whose content follows from the seed."""
    generator = torch.Generator().manual_seed(seed)
    big = torch.rand(mib, 1024, 256, generator=generator)
    save_file({"a.weight": big, "b.bias": torch.arange(7) + seed}, path)
    return path


@pytest.fixture(scope="module")
def checkpoint(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file whose content is the key m@1, on both nodes."""
    path = write_checkpoint(tmp_path_factory.mktemp("files") / "model.safetensors", 1)
    cluster.ask("put", str(path), "--key", "m@1", "--node", "n1", "--label", "step=1")
    cluster.ask("replicate", "m@1", "--to", "n2", "--wait", "--timeout", "60")
    return path


def call(cluster: Cluster, *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of one call."""
    done = cluster.tcctl(*arguments, code=None)
    return done.code, done.out, done.err


def fail(cluster: Cluster, *arguments: str) -> tuple[int, dict[str, str]]:
    """Exit code and error of a call that must fail, tell it as an object and print no data."""
    code, out, err = call(cluster, *arguments, "-o", "json")
    assert code != 0
    assert out == ""
    return code, json.loads(err)["error"]


# ---- shapes --------------------------------------------------------------------------------


def test_the_folder_of_a_model_comes_back_with_or_without_its_weights(cluster, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    write_checkpoint(folder / "model.safetensors", 77)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    put = cluster.ask("put", str(folder), "--key", "model@1", "--node", "n1")
    assert (put["tensors"], put["files"]) == (2, ["config.json"])
    cluster.ask("get", "model@1", f"{tmp_path}/whole/", "--node", "n1")
    assert {path.name for path in (tmp_path / "whole").iterdir()} == {
        "model.safetensors",
        "config.json",
    }
    got = cluster.ask("get", "model@1", f"{tmp_path}/bare", "--node", "n2", "--without-weights")
    assert (got["artifact"], got["path"]) == (put["id"], f"{tmp_path}/bare")
    assert (tmp_path / "bare" / "config.json").read_text() == '{"model_type": "llama"}'
    mark = json.loads((tmp_path / "bare" / "tensorcast.json").read_text())
    assert mark == {"artifact": put["id"], "name": "model@1"}
    assert not (tmp_path / "bare" / "model.safetensors").exists()


def test_artifacts(cluster: Cluster, checkpoint: Path) -> None:
    info = cluster.ask("artifact", "show", "m@1")
    fields = {"id", "kind", "state", "bytes", "tensors", "labels", "keys", "replicas"}
    assert set(info) >= fields
    assert (info["keys"], info["labels"], info["tensors"]) == (["m@1"], {"step": "1"}, 2)
    replica = {"node", "tier", "state", "chunks_ready", "chunks_total"}
    assert all(set(one) >= replica for one in info["replicas"])
    assert {one["node"] for one in info["replicas"]} == {"n1", "n2"}
    assert cluster.ask("artifact", "where", info["id"][:8]) == info
    assert info["id"] in [one["id"] for one in cluster.ask("artifact", "ls")]
    tensors = cluster.ask("artifact", "tensors", "m@1")
    assert [set(one) for one in tensors] == [{"name", "dtype", "shape", "offset", "bytes"}] * 2


def test_keys_nodes_and_operations(cluster: Cluster, checkpoint: Path) -> None:
    key = cluster.ask("key", "show", "m@1")
    assert set(key) >= {"key", "artifact", "version", "history"}
    assert set(key["history"][0]) == {"artifact", "at", "actor", "seq"}
    (node, _) = sorted(cluster.ask("node", "ls"), key=lambda one: one["node"])
    assert set(node) >= {"node", "epoch", "state", "tiers", "transports", "replicas"}
    assert set(node["tiers"]["dram"]) == {"capacity", "used"}
    (operation, *_) = cluster.ask("op", "ls", "--artifact", "m@1", "--status", "succeeded")
    shown = cluster.ask("op", "show", operation["id"])
    fields = "id kind node artifact status attempt bytes_moved transports cause fault"
    assert set(shown) >= {*fields.split(), "issued_at", "ended_at"}
    assert shown["fault"] is None


def test_the_log_and_its_replay(cluster: Cluster, checkpoint: Path) -> None:
    events = cluster.ask("audit", "log", "--artifact", "m@1")
    assert all(EVENT <= set(one) <= EVENT | {"cause_seq"} for one in events)
    assert events == cluster.ask("artifact", "history", "m@1")
    code, out, _ = call(cluster, "audit", "log", "--artifact", "m@1", "-o", "ndjson")
    assert code == 0
    assert [json.loads(line) for line in out.splitlines()] == events
    request = next(one for one in events if one["type"] == "artifact.replicas_requested")
    before = cluster.ask("replay", "--to", str(request["seq"] - 1), "artifact", "m@1")
    assert set(before) >= {"at_seq", "artifacts", "nodes", "operations", "plans"}
    (artifact,) = before["artifacts"]
    assert [one["node"] for one in artifact["replicas"]] == ["n1"]


def test_the_filters_of_the_log(cluster: Cluster, checkpoint: Path) -> None:
    (issued,) = cluster.ask("audit", "log", "--artifact", "m@1", "--type", "operation.issued")
    assert issued["actor"].startswith("policy:")
    assert cluster.ask("audit", "log", "--actor", issued["actor"], "--artifact", "m@1") == [issued]
    after = cluster.ask("audit", "log", "--since", str(issued["seq"]), "--limit", "3")
    assert [one["seq"] for one in after] == [issued["seq"] + n for n in (1, 2, 3)]
    (last,) = cluster.ask("audit", "log", "--last", "1")
    assert last["seq"] >= after[-1]["seq"]
    assert cluster.ask("audit", "log", "--to", issued["at"], "--from", issued["at"])
    assert cluster.ask("audit", "log", "--from", "2000-01-01", "--to", "2000-01-02") == []


def test_the_chain_of_causes_leads_from_the_bytes_to_whoever_asked(
    cluster: Cluster, checkpoint: Path
) -> None:
    events = cluster.ask("artifact", "history", "m@1")
    arrived = next(
        one for one in events if one["type"] == "replica.ready" and one["data"]["node"] == "n2"
    )
    for name in (str(arrived["seq"]), arrived["id"]):
        chain = cluster.ask("audit", "log", "--chain", name)
        assert [one["type"] for one in chain] == [
            "artifact.replicas_requested",
            "operation.issued",
            "operation.started",
            "replica.ready",
        ]
        assert [one["actor"].split(":")[0] for one in chain] == ["user", "policy", "mover", "mover"]


def test_status(cluster: Cluster) -> None:
    code, out, _ = call(cluster, "status", "-o", "json")
    info = json.loads(out)
    assert (code, info["state"], info["problems"]) == (0, "up", [])
    assert all(set(one) >= {"name", "state", "pid", "detail"} for one in info["services"])
    assert 0 < info["committed_seq"] <= info["last_seq"]


# ---- bytes ---------------------------------------------------------------------------------


def test_get_is_exact_and_does_not_write_over_a_file(
    cluster: Cluster, checkpoint: Path, tmp_path: Path
) -> None:
    target = tmp_path / "copy.safetensors"
    got = cluster.ask("get", "m@1", str(target), "--node", "n2")
    assert got["path"] == str(target)
    original, copy = load_file(checkpoint), load_file(target)
    assert original.keys() == copy.keys()
    assert all(torch.equal(original[name], copy[name]) for name in original)
    code, error = fail(cluster, "get", "m@1", str(target))
    assert (code, error["code"]) == (2, "invalid_argument")
    assert call(cluster, "get", "m@1", str(target), "--force")[0] == 0


def test_get_of_a_part(cluster: Cluster, checkpoint: Path, tmp_path: Path) -> None:
    target = tmp_path / "part.safetensors"
    view = r"names=a\..*;slice=a\.weight:0:1:2"
    cluster.ask("get", "m@1", str(target), "--view", view)
    part = load_file(target)
    assert list(part) == ["a.weight"]
    assert torch.equal(part["a.weight"], load_file(checkpoint)["a.weight"][1:3])
    assert fail(cluster, "get", "m@1", str(target), "--view", "names=zzz", "--force")[0] == 3


def test_put_again_changes_nothing(cluster: Cluster, checkpoint: Path) -> None:
    before = cluster.ask("key", "show", "m@1")
    again = cluster.ask("put", str(checkpoint), "--key", "m@1", "--label", "step=1")
    assert again["id"] == before["artifact"]
    assert cluster.ask("key", "show", "m@1") == before


def test_verify(cluster: Cluster, checkpoint: Path) -> None:
    info = cluster.ask("artifact", "verify", "m@1")
    assert info["ok"] is True
    assert {one["node"] for one in info["operations"]} == {"n1", "n2"}


# ---- exit codes ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "artifact show nothing",
        "artifact verify nothing",
        "key show nothing",
        "key rm nothing",
        "op show op-000000",
        "op watch op-000000",
        "node drain n99",
        "replicate nothing --to n2",
        "replicate m@1 --to n99",
        "get nothing /dev/null --force",
        "put /does/not/exist.safetensors",
        "put m --node n99",
        "audit log --chain 99999999",
        "audit log --artifact nothing",
        "artifact ls --context nowhere",
    ],
)
def test_what_is_not_there_is_exit_3(cluster: Cluster, checkpoint: Path, line: str) -> None:
    code, error = fail(cluster, *line.split())
    assert (code, error["code"]) == (3, "not_found")


def test_a_second_writer_of_a_key_is_a_conflict(
    cluster: Cluster, checkpoint: Path, tmp_path: Path
) -> None:
    other = write_checkpoint(tmp_path / "other.safetensors", 2)
    before = len(cluster.ask("artifact", "ls"))
    code, error = fail(cluster, "put", str(other), "--key", "m@1")
    assert (code, error["code"]) == (4, "conflict")
    assert len(cluster.ask("artifact", "ls")) == before
    assert fail(cluster, "key", "rm", "m@1", "--expect", "m@none")[0] == 3


def test_a_key_moves_by_compare_and_set(cluster: Cluster, checkpoint: Path, tmp_path: Path) -> None:
    first = cluster.ask("put", str(checkpoint), "--key", "cas@1")["id"]
    other = write_checkpoint(tmp_path / "other.safetensors", 3)
    second = cluster.ask("put", str(other))["id"]
    assert fail(cluster, "key", "set", "cas@1", second)[0] == 4
    assert fail(cluster, "key", "set", "cas@1", second, "--expect", second)[0] == 4
    moved = cluster.ask("key", "set", "cas@1", second[:12], "--expect", first[:12])
    assert (moved["artifact"], moved["version"]) == (second, 2)
    assert [one["artifact"] for one in moved["history"]] == [first, second]
    put = cluster.ask("put", str(checkpoint), "--key", "cas@1", "--expect", second)
    assert put["id"] == first
    assert fail(cluster, "key", "rm", "cas@1", "--expect", second)[0] == 4
    assert cluster.ask("key", "rm", "cas@1", "--expect", first)["artifact"] is None
    assert fail(cluster, "key", "show", "cas@1")[0] == 3


def test_bench_leaves_the_cluster_as_it_was(cluster: Cluster, checkpoint: Path) -> None:
    before = cluster.ask("artifact", "ls")
    found = cluster.ask("bench", "share", "p2p", "kv", "--size", "4MiB", "--rounds", "1")
    assert [one["what"] for one in found][:4] == ["put", "get", "p2p to n2", "put of client.empty"]
    assert all(one["bytes_per_s"] > 0 for one in found)
    assert cluster.ask("artifact", "ls") == before
    assert cluster.ask("kv", "ls") == []
    code, error = fail(cluster, "bench", "put", "--size", "100GiB")
    assert (code, error["code"]) == (1, "out_of_capacity")


def test_what_is_pinned_or_named_is_not_removed(cluster: Cluster, tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "pinned.safetensors", 4)
    artifact = cluster.ask("put", str(path), "--key", "pinned")["id"]
    assert cluster.ask("artifact", "pin", "pinned")["pinned"] is True
    assert fail(cluster, "artifact", "rm", "pinned", "--force")[0] == 4
    cluster.ask("artifact", "unpin", "pinned")
    assert fail(cluster, "artifact", "rm", artifact)[0] == 4
    assert cluster.ask("artifact", "rm", artifact, "--force")["state"] == "removed"


def test_operations_that_ended_are_left_alone(cluster: Cluster, checkpoint: Path) -> None:
    (ended, *_) = cluster.ask("op", "ls", "--status", "succeeded")
    assert fail(cluster, "op", "cancel", ended["id"])[0] == 4
    assert fail(cluster, "op", "retry", ended["id"])[0] == 4
    code, out, err = call(cluster, "op", "watch", ended["id"], "-q")
    assert (code, out, err) == (0, ended["id"] + "\n", "")


def test_a_wait_that_is_too_short_is_exit_5(cluster: Cluster, tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "slow.safetensors", 5, mib=64)
    cluster.ask("put", str(path), "--key", "slow", "--node", "n1")
    wait = ("replicate", "slow", "--to", "n2", "--wait", "--timeout")
    code, error = fail(cluster, *wait, "0.001")
    assert (code, error["code"]) == (5, "timeout")
    assert cluster.ask(*wait, "60")["state"] == "succeeded"


def test_without_a_cluster_it_is_exit_6(cluster: Cluster, tmp_path: Path) -> None:
    env = {**cluster.env, "TENSORCAST_CONFIG_DIR": str(tmp_path)}
    env.pop("TENSORCAST_CONTEXT", None)
    nowhere = {**env, "TENSORCAST_NATS_URL": "nats://127.0.0.1:1"}
    for environ in (env, nowhere):
        done = subprocess.run(
            [TCCTL, "node", "ls", "-o", "json"],
            env=environ,
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert (done.returncode, done.stdout) == (6, "")
        assert json.loads(done.stderr)["error"]["code"] == "unavailable"


def test_nodes_are_cordoned_and_used_again(cluster: Cluster) -> None:
    assert cluster.ask("node", "cordon", "n2")["cordoned"] is True
    assert cluster.ask("node", "show", "n2")["cordoned"] is True
    assert cluster.ask("node", "uncordon", "n2")["cordoned"] is False


# ---- bad files -----------------------------------------------------------------------------


def head(text: str, *, length: int | None = None) -> bytes:
    """A safetensors file of a header and 16 bytes; `length` lies about the header's length."""
    encoded = text.encode()
    return struct.pack("<Q", len(encoded) if length is None else length) + encoded + bytes(16)


def tensor(start: int, stop: int, *, dtype: str = "F32", shape: str = "[2]") -> str:
    return f'{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{start},{stop}]}}'


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x01\x02",
        head("{}", length=1 << 62),
        head("{"),
        head(f'{{"a":{tensor(0, 8)},"b":{tensor(4, 12)}}}'),
        head(f'{{"a":{tensor(0, 800, shape="[200]")}}}'),
        head(f'{{"a":{tensor(0, 9)}}}'),
        head(f'{{"a":{tensor(0, 8, dtype="F33")}}}'),
        head(f'{{"a":{tensor(0, 8, shape="[-2]")}}}'),
        head(f'{{"a":{tensor(0, 8)},"a":{tensor(8, 16)}}}'),
    ],
    ids=[
        *("empty", "short", "huge-head", "no-json", "overlap", "out-of-range", "wrong-size"),
        *("dtype", "negative", "twice"),
    ],
)
def test_a_broken_file_is_one_sentence_and_leaves_nothing(
    cluster: Cluster, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "broken.safetensors"
    path.write_bytes(content)
    before = cluster.ask("status")["last_seq"]
    code, out, err = call(cluster, "put", str(path), "--key", "broken")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "Traceback" not in err
    assert str(path) in err
    assert cluster.ask("status")["last_seq"] == before


# ---- signals and pipes -----------------------------------------------------------------------


def test_following_the_log_ends_with_ctrl_c_quietly(cluster: Cluster, checkpoint: Path) -> None:
    process = subprocess.Popen(
        [TCCTL, "audit", "log", "--follow", "-o", "ndjson"],
        env=dict(cluster.env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["seq"] == 1
    before = cluster.ask("status")["last_seq"]
    cluster.ask("node", "cordon", "n2")
    cluster.ask("node", "uncordon", "n2")
    seen = 0
    while seen < before + 2:
        seen = json.loads(process.stdout.readline())["seq"]
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    assert (process.returncode, err) == (130, "")


def test_a_reader_that_leaves_is_no_error(cluster: Cluster, checkpoint: Path) -> None:
    line = f"set -o pipefail; {TCCTL} audit log -o ndjson | head -n 1"
    done = subprocess.run(
        ["bash", "-c", line], env=dict(cluster.env), capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1


# ---- the cluster itself ------------------------------------------------------------------------


def test_status_without_the_control_plane_is_degraded(cluster: Cluster) -> None:
    services = {one["name"]: one for one in cluster.ask("status")["services"]}
    pid = services["controlplane"]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        code, out, _ = call(cluster, "status", "-o", "json")
    finally:
        os.kill(pid, signal.SIGCONT)
    info = json.loads(out)
    assert (code, info["state"], info["last_seq"]) == (1, "degraded", None)
    assert "did not answer" in " ".join(info["problems"])
    deadline = time.monotonic() + 30
    while call(cluster, "status", "-q")[0] and time.monotonic() < deadline:
        time.sleep(0.2)
    assert call(cluster, "status", "-q")[:2] == (0, "up\n")


def test_down_and_up_lose_nothing(cluster: Cluster, checkpoint: Path, tmp_path: Path) -> None:
    before = cluster.ask("artifact", "show", "m@1")
    events = cluster.ask("artifact", "history", "m@1")
    assert call(cluster, "down", "-o", "json")[0] == 0
    code, out, _ = call(cluster, "status", "-o", "json")
    assert (code, json.loads(out)["state"]) == (6, "down")
    assert fail(cluster, "artifact", "ls")[0] == 6
    assert fail(cluster, "get", "m@1", str(tmp_path / "x.safetensors"))[0] == 6
    up = cluster.ask("up")
    assert (up["state"], len(up["services"])) == ("up", 6)
    after = cluster.ask("artifact", "show", "m@1")
    assert {**after, "seq": 0} == {**before, "seq": 0}
    assert cluster.ask("artifact", "history", "m@1")[: len(events)] == events
    target = tmp_path / "copy.safetensors"
    cluster.ask("get", "m@1", str(target), "--node", "n2")
    assert torch.equal(load_file(target)["a.weight"], load_file(checkpoint)["a.weight"])
