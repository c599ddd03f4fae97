"""Trials against a client that keeps everything in this process."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import save_file

from tensorcast.client.trials import LABEL, Times, Wanted, limit_blocks, run_trials
from tensorcast.schema.errors import Corrupt, InvalidArgument, OutOfCapacity
from trial_client import Kept, TrialClient

MIB = 1 << 20


def wanted(*kinds: str, **more: object) -> Wanted:
    asked = {"kinds": kinds, "size_bytes": MIB, "rounds": 2, "kv_bytes": 4 * MIB, **more}
    return Wanted(**asked)


@pytest.mark.parametrize(
    ("size", "expected"), [(MIB, 2 * MIB), (32 * MIB, 32 * MIB), (256 * MIB, 64 * MIB)]
)
def test_blocks_have_the_size_that_is_asked_for_up_to_a_limit(size: int, expected: int) -> None:
    assert limit_blocks(size) == expected


def test_each_kind_gives_its_trials_and_leaves_nothing() -> None:
    client = TrialClient(room=256 * MIB)
    found = run_trials(client, wanted("put", "get", "share", "p2p", "kv"))
    assert [one.what for one in found] == [
        "put",
        "get",
        "p2p to n2",
        "put of client.empty",
        *[f"kv {verb} {size}" for size in ("64 KiB", "2 MiB") for verb in ("put", "get", "view")],
    ]
    assert {one.rounds for one in found} == {2}
    assert found[0].baseline == "write into fresh memory"
    assert found[0].ratio == pytest.approx(
        found[0].bytes_per_s / found[0].baseline_bytes_per_s, rel=0.01
    )
    assert not client.kept
    assert not client.blocks


def test_what_was_there_stays() -> None:
    client = TrialClient()
    mine = client.kept["mine"] = Kept("mine", {"tcctl-bench": "another run"}, {})
    run_trials(client, wanted("put"))
    assert client.kept == {"mine": mine}


@pytest.mark.parametrize("call", ["put", "get", "replicate to n2", "put_blocks"])
def test_an_interrupt_leaves_nothing(call: str) -> None:
    client = TrialClient(room=256 * MIB, breaks=(call,))
    with pytest.raises(KeyboardInterrupt):
        run_trials(client, wanted("share", "p2p", "kv"))
    assert not client.kept
    assert not client.blocks


@pytest.mark.parametrize(
    ("kinds", "size", "room"),
    [
        (("put",), 5 * MIB, 3),
        (("put",), 5 * MIB, 13),  # 13 MiB are free, 10.4 below the high mark; 12 at the peak
        (("share",), 5 * MIB, 13),
        (("p2p",), 5 * MIB, 13),
        (("kv",), MIB, 9),  # 9 MiB, 7.2 below the mark; slabs of two sizes
    ],
)
def test_nothing_is_evicted_unless_forced(kinds: tuple[str, ...], size: int, room: int) -> None:
    """A quarter of the memory is free; at 95 % of it nodes begin to evict."""
    client = TrialClient(room=room * MIB)
    with pytest.raises(OutOfCapacity, match=r"Node n1 has \d+ MiB of memory free"):
        run_trials(client, wanted(*kinds, size_bytes=size))
    assert client.calls == []
    assert run_trials(client, wanted(*kinds, size_bytes=size, force=True))
    client = TrialClient(room=64 * MIB)
    assert run_trials(client, wanted(*kinds, size_bytes=size))


def test_other_blocks_are_not_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the budget of KV blocks has left counts, not the node's memory alone."""
    client = TrialClient(room=256 * MIB)
    (one,) = client.block_stats()
    full = msgspec.structs.replace(one, counters={"slab_bytes": 64 * MIB, "free_bytes": MIB})
    monkeypatch.setattr(client, "block_stats", lambda: (full,))
    with pytest.raises(OutOfCapacity, match="Node n1 has 1 MiB of memory for KV blocks free"):
        run_trials(client, wanted("kv"))
    assert client.calls == []


@pytest.mark.parametrize("kind", ["get", "kv"])
def test_wrong_bytes_are_an_error(kind: str) -> None:
    client = TrialClient(room=256 * MIB, damage=True)
    with pytest.raises(Corrupt, match="other bytes than were put"):
        run_trials(client, wanted(kind))
    assert not client.kept
    assert not client.blocks


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (wanted("fly"), "'fly' is no trial"),
        (wanted("load"), "A load needs a checkpoint"),
        (wanted("put", size_bytes=100), "too few to time"),
        (wanted("p2p", to="n1"), "no other node 'n1'"),
        (wanted("p2p", to="n3"), "no other node 'n3'"),
    ],
)
def test_what_makes_no_sense_is_refused(asked: Wanted, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        run_trials(TrialClient(), asked)


def test_a_load_needs_no_room_in_the_cluster(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.arange(1000)}, path)
    found = run_trials(TrialClient(), wanted("load", path=path))
    assert [one.what for one in found] == ["load, copied", "load, mapped"]
    assert {one.bytes for one in found} == {path.stat().st_size}


def test_artifacts_are_labelled_so_that_they_can_be_found() -> None:
    client = TrialClient()
    seen: list[dict[str, str]] = []
    client.note = lambda _: seen.extend(kept.labels for kept in client.kept.values())
    run_trials(client, wanted("put"))
    assert {tuple(labels) for labels in seen} == {(LABEL,)}


def test_the_median_counts_and_a_baseline_is_optional() -> None:
    times = Times()
    for seconds in (1.0, 4.0, 2.0):
        times.add("get", 100, seconds)
        times.compare("get", "copy", seconds / 2)
    times.add("view", 100, 1.0)
    get, view = times.trials()
    assert (get.seconds, get.seconds_min, get.seconds_max) == (2.0, 1.0, 4.0)
    assert (get.bytes_per_s, get.baseline_bytes_per_s, get.ratio) == (50.0, 100.0, 0.5)
    assert (view.baseline, view.ratio) == ("", 0.0)
