"""Opened checkpoint files."""

from __future__ import annotations

import os

import pytest
import torch
from safetensors.torch import save_file

from tensorcast.client.headers import check_unchanged, open_file, open_files
from tensorcast.schema.errors import Corrupt, InvalidArgument, NotFound


@pytest.fixture
def paths(tmp_path):
    found = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    for path in found:
        save_file({path.stem: torch.arange(100.0)}, path)
    return found


def test_files_are_open_with_their_headers(paths):
    with open_files(paths) as files:
        assert [t.name for file in files for t in file.header.tensors] == ["a", "b"]
        target = bytearray(4)
        files[1].read_exactly(memoryview(target), files[1].header.tensors[0].place.offset + 4)
        assert torch.frombuffer(target, dtype=torch.float32).item() == 1.0
        check_unchanged(files)


def test_the_same_tensor_twice_is_corrupt(paths):
    save_file({"a": torch.zeros(1)}, paths[1])
    told = r"'a' is in .*a.safetensors and in .*b.safetensors"
    with pytest.raises(Corrupt, match=told), open_files(paths):
        pass


def test_a_change_is_seen(paths):
    with open_files(paths) as files:
        os.truncate(paths[0], 50)
        with pytest.raises(Corrupt, match="changed while it was read"):
            check_unchanged(files)
        with pytest.raises(Corrupt, match="changed while it was read"):
            files[0].read_exactly(memoryview(bytearray(100)), 0)


def test_what_is_no_file_is_told(tmp_path):
    os.mkfifo(tmp_path / "pipe.safetensors")
    pipe = tmp_path / "pipe.safetensors"
    with pytest.raises(InvalidArgument, match="no regular file"), open_file(pipe):
        pass
    with pytest.raises(NotFound), open_file(tmp_path / "none.safetensors"):
        pass
