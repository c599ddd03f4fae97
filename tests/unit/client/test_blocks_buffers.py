from __future__ import annotations

import pytest
import torch

from tensorcast.client.blocks_buffers import flat_views, shape_views
from tensorcast.schema.errors import InvalidArgument


def test_tensors_and_buffers_are_flat_bytes():
    views, _ = flat_views([torch.arange(3, dtype=torch.int32), b"abc"], 2, write=False)
    assert [bytes(view) for view in views] == [bytes([0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0]), b"abc"]


@pytest.mark.parametrize(
    "block",
    [torch.empty(4, device="meta"), torch.ones(4, 4).t(), "text", None, b""],
    ids=["meta", "strided", "text", "none", "empty"],
)
def test_what_is_no_block_is_told(block):
    with pytest.raises(InvalidArgument, match="block"):
        flat_views([block], 1, write=False)


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [("bf16", None), (torch.float32, "ab"), (torch.float32, 4), (torch.float32, (3,))],
)
def test_what_is_no_form_of_a_block_is_told(dtype, shape):
    with pytest.raises(InvalidArgument):
        shape_views([memoryview(bytes(16))], dtype, shape)


def test_views_become_tensors():
    (found,) = shape_views([memoryview(bytes(16))], torch.float32, (2, 2))
    assert found is not None
    assert found.shape == (2, 2)
