"""Checkpoints loaded without a cluster, in every way: the same tensors as safetensors reads."""

from __future__ import annotations

import json
import os

import pytest
import torch
from safetensors.torch import load_file, save_file

import tensorcast as tc
from tensorcast.schema.errors import Corrupt, InvalidArgument, NotFound, PermissionDenied

MODES = ["auto", "copy", "map"]
TENSORS = {
    "layer.0.q": torch.arange(4096.0).view(64, 64),
    "layer.0.norm": torch.arange(64, dtype=torch.bfloat16),
    "layer.1.q": torch.arange(64 * 64 * 64).view(64, 64, 64).to(torch.float16),
    "scalar": torch.tensor(7, dtype=torch.int64),
    "empty": torch.zeros((0, 5)),
    "flags": torch.tensor([True, False, True]),
}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file(TENSORS, path)
    return path


def forget(path) -> None:
    """Has the kernel drop the file's pages, where it can."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def check(found, wanted=TENSORS) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("is_cached", [True, False])
def test_a_file_is_loaded(path, mode, is_cached):
    if not is_cached:
        forget(path)
    check(tc.load(path, mode=mode))
    check(tc.load(str(path), mode=mode, threads=1))


def test_a_folder_with_an_index_is_loaded(tmp_path):
    names = list(TENSORS)
    shards = {"one.safetensors": names[::2], "two.safetensors": names[1::2]}
    for file, held in shards.items():
        save_file({name: TENSORS[name] for name in held}, tmp_path / file)
    weight_map = {name: file for file, held in shards.items() for name in held}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    check(tc.load(tmp_path))
    check(tc.load([tmp_path / file for file in shards], mode="copy"))
    check(tc.load(f"file://{tmp_path}"))


@pytest.mark.parametrize("mode", MODES)
def test_a_view_is_loaded(path, mode):
    view = tc.View.shard(rank=1, world=2, rules={r".*\.q": 1})
    wanted = {n: t[:, t.shape[1] // 2 :] if n.endswith(".q") else t for n, t in TENSORS.items()}
    check(tc.load(path, view=view, mode=mode), wanted)
    names = tc.View.tensors(r"layer\.0\..*")
    check(
        tc.load(path, view=names, mode=mode),
        {n: t for n, t in TENSORS.items() if n.startswith("layer.0.")},
    )


def test_rows_have_memory_of_their_own(path):
    view = tc.View.slice(r"layer\.1\.q", dim=2, start=1, length=2)
    assert tc.load(path, view=view)["layer.1.q"].is_contiguous()


@pytest.mark.parametrize("mode", MODES)
def test_writing_to_tensors_changes_nobody_elses(path, mode):
    before = path.read_bytes()
    tc.load(path, mode=mode)["layer.0.q"].zero_()
    assert path.read_bytes() == before
    check(tc.load(path, mode=mode))


def test_copies_do_not_depend_on_the_file(path):
    found = tc.load(path, mode="copy")
    path.write_bytes(b"")
    check(found)


def test_tensors_that_are_not_aligned_are_copied(tmp_path):
    text = b'{"x":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}} '
    data = torch.tensor([1.0, 2.0, 3.0])
    path = tmp_path / "odd.safetensors"
    body = bytes(data.view(torch.uint8).tolist())
    path.write_bytes((len(text) + 1).to_bytes(8, "little") + text + b" " + body)
    found = tc.load(path)["x"]
    assert torch.equal(found, data)
    assert not found.data_ptr() % 4


def test_tensors_are_read_in_place(path):
    targets = {name: torch.empty_like(tensor) for name, tensor in TENSORS.items()}
    targets["layer.0.q"] = torch.zeros(64, 128)[:, ::2]  # not in order: by way of a copy
    addresses = {name: tensor.data_ptr() for name, tensor in targets.items()}
    tc.load_into(path, targets)
    check(targets)
    assert addresses == {name: tensor.data_ptr() for name, tensor in targets.items()}


def test_nothing_is_read_when_a_target_does_not_fit(path):
    targets = {name: torch.zeros_like(tensor) for name, tensor in TENSORS.items()}
    targets["flags"] = torch.zeros(4, dtype=torch.bool)
    with pytest.raises(InvalidArgument, match="flags"):
        tc.load_into(path, targets)
    assert not any(tensor.any() for tensor in targets.values())
    with pytest.raises(InvalidArgument, match="no target"):
        tc.load_into(path, {"scalar": torch.zeros((), dtype=torch.int64)})
    scalar = torch.zeros((), dtype=torch.int64)
    tc.load_into(path, {"scalar": scalar, "other": torch.zeros(3)}, strict=False)
    assert scalar == 7


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cut", [0, 5, 100, 300_000])
def test_a_file_that_is_cut_off_is_corrupt(path, mode, cut):
    os.truncate(path, cut)
    with pytest.raises(Corrupt, match=r"model\.safetensors"):
        tc.load(path, mode=mode)


def test_wrong_arguments_are_told(path, tmp_path):
    with pytest.raises(NotFound, match="There is no file"):
        tc.load(tmp_path / "none.safetensors")
    with pytest.raises(NotFound, match="No tensor is named"):
        tc.load(path, view=tc.View.tensors("none"))
    with pytest.raises(InvalidArgument, match="no mode"):
        tc.load(path, mode="quick")
    for threads in (0, -1, 10**6, "two"):
        with pytest.raises(InvalidArgument, match="threads"):
            tc.load(path, threads=threads)
    with pytest.raises(InvalidArgument, match="no URL of a store"):
        tc.load("ftp://host/x.safetensors")
    with pytest.raises(InvalidArgument, match="can only be read from a disk"):
        tc.load("s3://bucket/x.pt")
    for nothing in (None, 5, "", "a\0b"):
        with pytest.raises(InvalidArgument):
            tc.load(nothing)
    if not torch.cuda.is_available():
        with pytest.raises(InvalidArgument, match="no device cuda"):
            tc.load(path, device="cuda")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_told(path):
    path.chmod(0)
    with pytest.raises(PermissionDenied, match="cannot be read"):
        tc.load(path)


def test_a_torch_file_is_loaded(tmp_path):
    torch.save(TENSORS, tmp_path / "model.pt")
    check(tc.load(tmp_path / "model.pt"))
    with pytest.raises(InvalidArgument, match="no views"):
        tc.load(tmp_path / "model.pt", view=tc.View.tensors("scalar"))
    with pytest.raises(InvalidArgument, match="torch file"):
        tc.load_into(tmp_path / "model.pt", {})


def test_it_agrees_with_safetensors(path):
    check(tc.load(path), load_file(path))


def test_a_file_without_bytes_is_loaded(tmp_path):
    save_file({"empty": torch.zeros((0, 2))}, tmp_path / "none.safetensors")
    for mode in MODES:
        assert tc.load(tmp_path / "none.safetensors", mode=mode)["empty"].shape == (0, 2)
