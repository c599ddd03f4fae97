"""The models that the tests make: whole, the same each time, other with another seed."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from models import GIBIBYTE, TINY, make_tokens, tensor_sizes, write_llama


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny")
    write_llama(path, TINY, seed=1)
    return path


def test_a_seed_always_gives_the_same_files(folder, tmp_path):
    write_llama(tmp_path, TINY, seed=1)
    names = sorted(path.name for path in folder.iterdir())
    assert names == sorted(path.name for path in tmp_path.iterdir())
    for name in names:
        assert (folder / name).read_bytes() == (tmp_path / name).read_bytes()


def test_another_seed_gives_other_weights(folder, tmp_path):
    write_llama(tmp_path, TINY, seed=2)
    ours, other = (load_file(path / "model.safetensors") for path in (folder, tmp_path))
    assert ours.keys() == other.keys()
    same = [name for name in ours if torch.equal(ours[name], other[name])]
    assert all("norm" in name for name in same)


def test_the_config_describes_the_weights(folder):
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    assert tensors["lm_head.weight"].shape == (config["vocab_size"], config["hidden_size"])
    layers = {name.split(".")[2] for name in tensors if ".layers." in name}
    assert len(layers) == config["num_hidden_layers"]


def test_the_tokenizer_has_a_token_for_each_row(folder):
    tokens, merges = make_tokens(TINY.vocabulary)
    assert len(set(tokens)) == TINY.vocabulary
    assert all(first + second in tokens for first, second in merges)


def test_the_large_one_is_a_gibibyte():
    elements = sum(torch.Size(size).numel() for _, size in tensor_sizes(GIBIBYTE))
    assert 0.95 < elements * 4 / 2**30 < 1.05
