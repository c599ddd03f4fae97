"""The small files of a model: which travel along, and how they come back."""

from __future__ import annotations

import os

import pytest
import torch
from safetensors.torch import save_file

from intakes import written
from tensorcast.client.model_files import (
    Mark,
    choose_model_files,
    find_folder,
    find_model_files,
    read_files,
    read_mark,
    write_files,
    write_model_folder,
)
from tensorcast.client.publishing import take_in
from tensorcast.schema import files
from tensorcast.schema.errors import InvalidArgument, NotFound
from tensorcast.schema.files import files_of, without_files

LAYER = "model.layers.0.self_attn"


@pytest.fixture
def model(tmp_path):
    """A small checkpoint folder, as HF writes it."""
    folder = tmp_path / "model"
    folder.mkdir()
    tensors = {f"{LAYER}.{p}_proj.weight": torch.full((32, 8), ord(p[0])) for p in "koqv"}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "tokenizer.json").write_bytes(b"\x00\xff" * 700)
    (folder / "empty.txt").write_bytes(b"")
    (folder / ".hidden").write_text("secret")
    (folder / "original").mkdir()
    return folder


def names(found) -> list[str]:
    return [one.tensor.removeprefix(files.FILE_PREFIX) for one in found]


def test_what_belongs_to_the_model_and_is_no_weights_travels_along(model):
    assert names(find_model_files([model])) == ["config.json", "empty.txt", "tokenizer.json"]
    assert names(find_model_files([f"file://{model}"])) == names(find_model_files([str(model)]))


def test_without_a_config_nothing_travels():
    assert choose_model_files(["model.safetensors", "README.md"]) == ()
    assert choose_model_files(
        ["b", "config.json", "x.bin", "model.safetensors.index.json", "a\n", "chat_template.jinja"]
    ) == ("b", "chat_template.jinja", "config.json")


@pytest.mark.parametrize("given", [["{}/model.safetensors"], ["{}", "{}"], [7], ["{}/original"]])
def test_only_a_single_folder_brings_files(model, given):
    assert find_model_files([g.format(model) if isinstance(g, str) else g for g in given]) == ()


def test_a_put_of_the_folder_holds_them_behind_tensors_in_the_order_of_engines(model):
    with take_in(model) as intake:
        memory, sealed = written(intake)
    tensors = without_files(sealed.manifest.index)
    assert [spec.name for spec in tensors] == [f"{LAYER}.{p}_proj.weight" for p in "qkvo"]
    for spec in tensors:
        assert set(memory[spec.offset : spec.extent.end]) - {0} == {ord(spec.name[-13])}
    assert list(files_of(sealed.manifest.index)) == ["config.json", "empty.txt", "tokenizer.json"]
    found = read_files(memory, sealed.manifest.index)
    assert found["tokenizer.json"] == b"\x00\xff" * 700
    assert found["empty.txt"] == b""


def test_a_torch_checkpoint_brings_them_too(model):
    os.unlink(model / "model.safetensors")
    torch.save({"w": torch.ones(3)}, model / "pytorch_model.bin")
    with take_in(model) as intake:
        memory, sealed = written(intake)
    assert [spec.name for spec in without_files(sealed.manifest.index)] == ["w"]
    assert read_files(memory, sealed.manifest.index)["config.json"] == b'{"model_type": "llama"}'


def test_too_large_a_file_is_refused(model, monkeypatch):
    monkeypatch.setattr("tensorcast.client.model_files.FILE_BYTES_MAX", 1000)
    with pytest.raises(InvalidArgument, match=r"tokenizer\.json .* too large"):
        find_model_files([model])


def test_too_many_files_are_refused(model, monkeypatch):
    monkeypatch.setattr("tensorcast.client.model_files.FILES_MAX", 2)
    with pytest.raises(InvalidArgument, match="3 files"):
        find_model_files([model])


def test_they_are_written_as_they_were_and_never_over_another(tmp_path):
    folder = tmp_path / "deep" / "out"
    content = {"a.json": b"1", "b": b""}
    paths = write_files(content, folder, force=False)
    assert paths == (str(folder / "a.json"), str(folder / "b"))
    assert write_files(content, folder, force=False) == paths
    with pytest.raises(InvalidArgument, match=r"a\.json exists"):
        write_files({"c": b"new", "a.json": b"2"}, folder, force=False)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == content
    write_files({"a.json": b"2"}, folder, force=True)
    assert (folder / "a.json").read_bytes() == b"2"


def test_which_targets_are_folders(tmp_path):
    assert find_folder(tmp_path) == tmp_path
    assert find_folder(f"{tmp_path}/new/") == tmp_path / "new"
    assert find_folder(tmp_path / "new") is None
    assert find_folder("s3://bucket/folder/") is None


def test_a_folder_for_an_engine_names_the_weights_that_belong_to_it(tmp_path):
    mark = Mark(artifact="ab" * 20, name="llama@1")
    made = write_model_folder({"config.json": b"{}"}, mark, tmp_path / "m", force=False)
    assert made.artifact == mark.artifact
    assert {os.path.basename(path) for path in made.paths} == {"config.json", "tensorcast.json"}
    assert read_mark(tmp_path / "m") == mark
    assert choose_model_files([path.name for path in (tmp_path / "m").iterdir()]) == (
        "config.json",
    )
    again = Mark(artifact="cd" * 20)
    write_model_folder({"config.json": b"{}"}, again, tmp_path / "m", force=False)
    assert read_mark(tmp_path / "m") == again


def test_without_files_there_is_no_such_folder(tmp_path):
    with pytest.raises(NotFound, match="No files travel"):
        write_model_folder({}, Mark(artifact="ab" * 20), tmp_path / "m", force=False)
    assert not (tmp_path / "m").exists()


def test_a_mark_is_read_with_suspicion(tmp_path):
    assert read_mark(tmp_path) is None
    assert read_mark(tmp_path / "nowhere") is None
    (tmp_path / "tensorcast.json").write_text('{"artifact": 7}')
    with pytest.raises(InvalidArgument, match=r"tensorcast\.json cannot be read"):
        read_mark(tmp_path)
