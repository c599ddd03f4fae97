"""Tensors come when their bytes are there, each once."""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field

import pytest
import torch

from tensorcast.client.arrivals import is_covered
from tensorcast.engines.arriving import tensors_as_they_come
from tensorcast.schema.chunks import ByteRange, ChunkSet
from tensorcast.schema.errors import Unavailable
from tensorcast.schema.files import tensor_name
from tensorcast.schema.tensors import lay_out

CHUNK = 256
INDEX, SIZE = lay_out(
    [*((f"w{n}", "F32", (100,)) for n in range(4)), (tensor_name("config.json"), "U8", (9,))]
)


@dataclass
class Fake:
    """An arrival whose chunks come in the order of `turns`; after them nothing comes."""

    turns: list[tuple[int, ...]]
    chunks: ChunkSet = field(default_factory=ChunkSet)
    index = INDEX
    is_excerpt: bool = False

    def __post_init__(self) -> None:
        self.memory = mmap.mmap(-1, SIZE)

    def has(self, place: ByteRange) -> bool:
        return is_covered(place, self.chunks, CHUNK)

    def wait(self, *, timeout: float) -> None:
        if not self.turns:
            raise Unavailable("Nothing more will come.")
        for chunk in self.turns.pop(0):
            end = min((chunk + 1) * CHUNK, SIZE)
            self.memory[chunk * CHUNK : end] = bytes([chunk + 1]) * (end - chunk * CHUNK)
            self.chunks = self.chunks | ChunkSet.of([chunk])


def names(arrival, skips=lambda name: False):
    return [name for name, _ in tensors_as_they_come(arrival, skips, 1.0)]


def test_what_is_there_comes_first_and_nothing_comes_before_its_bytes():
    arrival = Fake([(5, 6), (0, 1), (4,), (2, 3)])
    seen = []
    for name, tensor in tensors_as_they_come(arrival, lambda name: False, 1.0):
        assert 0 not in tensor.view(torch.uint8).tolist()
        seen.append((name, len(arrival.turns)))
    assert seen == [("w3", 3), ("w0", 2), ("w1", 0), ("w2", 0)]


def test_a_whole_artifact_comes_in_its_order_and_without_files():
    arrival = Fake([], ChunkSet.full(10))
    assert names(arrival) == ["w0", "w1", "w2", "w3"]


def test_of_a_part_all_tensors_come_before_their_bytes():
    arrival = Fake([], is_excerpt=True)
    assert names(arrival, lambda name: name == "w1") == ["w0", "w2", "w3"]


def test_what_is_skipped_is_not_waited_for():
    arrival = Fake([(0, 1)])
    assert names(arrival, lambda name: name != "w0") == ["w0"]


def test_what_ends_the_arrival_is_told_after_what_came():
    arrival = Fake([(0, 1)])
    found = tensors_as_they_come(arrival, lambda name: False, 1.0)
    assert next(found)[0] == "w0"
    with pytest.raises(Unavailable):
        next(found)
