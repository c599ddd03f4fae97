"""Which weights an engine's flags and folder name."""

from __future__ import annotations

import json

import pytest

from tensorcast.engines.vllm.checkpoint import (
    Options,
    may_have_weights,
    name_weights,
    read_options,
)
from tensorcast.schema.errors import InvalidArgument


def test_a_key_or_an_id_in_the_options_comes_first(tmp_path):
    (tmp_path / "tensorcast.json").write_text(json.dumps({"artifact": "ab" * 20}))
    assert name_weights(read_options({"key": "a@1"}), str(tmp_path)) == "a@1"
    assert name_weights(read_options({"artifact": "cd" * 20}), str(tmp_path)) == "cd" * 20


def test_then_what_the_folder_of_the_model_says(tmp_path):
    (tmp_path / "tensorcast.json").write_text(json.dumps({"artifact": "ab" * 20, "name": "a@1"}))
    assert name_weights(Options(), str(tmp_path)) == "ab" * 20


def test_then_the_name_of_the_model():
    assert name_weights(Options(), "meta/llama-8b") == "meta/llama-8b"


def test_only_a_folder_with_weights_or_a_name_may_have_weights(tmp_path):
    assert may_have_weights("meta/llama-8b")
    assert not may_have_weights(str(tmp_path))
    (tmp_path / "model.safetensors").touch()
    assert may_have_weights(str(tmp_path))
    assert not may_have_weights(str(tmp_path / "model.safetensors"))


def test_a_folder_that_says_nothing_is_no_key(tmp_path):
    with pytest.raises(InvalidArgument, match="Nothing says which weights"):
        name_weights(Options(), str(tmp_path))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"kye": "a"}, "kye.*Known are key"),
        ({"key": 7}, "key"),
        ({"timeout_s": "soon"}, "timeout_s"),
        ({"key": "a", "artifact": "b"}, "names a key and an artifact"),
    ],
)
def test_options_that_cannot_be_meant_are_told(given, words):
    with pytest.raises(InvalidArgument, match=words):
        read_options(given)


def test_without_options_everything_has_a_default():
    assert read_options({}) == read_options(None) == Options()
