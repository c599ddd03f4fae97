"""The memory of an arena, over segments of the test's own: no mover."""

import gc
import os

import pytest
import torch

from tensorcast.client.arena import Arena, find_arena
from tensorcast.client.spec import lay_out_spec
from tensorcast.client.tensors import build_tensors
from tensorcast.movers.memory.memfd import create_segment
from tensorcast.schema.errors import Corrupt
from tensorcast.schema.views import Selected

SPEC = {"a": (1000, 700), "b": (5,), "empty": (0, 3)}


class Wire:
    """Stands for the connection on which the segment was opened."""

    is_closed = False

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def segment():
    made = create_segment("segment-test", 4 << 20, is_touched=False)
    yield made
    made.close()


def make(segment, wire, spec=None):
    index, size_bytes = lay_out_spec(SPEC if spec is None else spec)
    read, lifeline = os.pipe()
    descriptors = (segment.open_writable(), segment.open_read_only(), lifeline)
    arena = Arena.over(descriptors, wire, 1, index, size_bytes)
    tensors = build_tensors(memoryview(arena), [Selected(item) for item in index])
    arena.note_places(tensors)
    return arena, tensors, read


def test_what_is_written_to_the_tensors_is_in_the_segment(segment):
    arena, tensors, lifeline = make(segment, Wire())
    tensors["b"][:] = torch.arange(5.0)
    offset = arena.index[1].offset
    assert bytes(segment.memory[offset : offset + 20]) == torch.arange(5.0).numpy().tobytes()
    os.close(lifeline)


def test_after_the_put_the_tensors_are_valid_and_private(segment):
    arena, tensors, lifeline = make(segment, Wire())
    tensors["a"].fill_(3)
    with arena.taken():
        arena.make_private()
        assert segment.has_writers()  # the old mapping, aside
        arena.give_up()
    assert not segment.has_writers()
    assert segment.is_mapped()
    assert (tensors["a"] == 3).all()
    tensors["a"].fill_(4)
    assert (tensors["a"] == 4).all()
    assert torch.frombuffer(segment.memory, dtype=torch.float32, count=1)[0] == 3
    os.close(lifeline)


def test_only_exactly_its_tensors_are_its_own(segment):
    arena, tensors, lifeline = make(segment, Wire())
    assert find_arena([arena], tensors) is arena
    assert find_arena([arena], {n: t.detach() for n, t in tensors.items()}) is arena
    parameters = {n: torch.nn.Parameter(t) for n, t in tensors.items()}
    assert find_arena([arena], parameters) is arena
    a, b, empty = tensors.values()
    for others in (
        {"a": a, "b": b},
        {"b": b, "a": a, "empty": empty},
        {"x": a, "b": b, "empty": empty},
        {"a": a.clone(), "b": b, "empty": empty},
        {"a": a.view(700, 1000), "b": b, "empty": empty},
        {"a": a, "b": b.view(torch.int32), "empty": empty},
        {"a": a, "b": "text", "empty": empty},
        {},
        ["a"],
        "path",
    ):
        assert find_arena([arena], others) is None
    with arena.taken():
        assert find_arena([arena], tensors) is None  # another put has it
        arena.make_private()
    assert find_arena([arena], tensors) is None
    os.close(lifeline)


def test_all_is_given_back_with_the_last_tensor(segment):
    wire = Wire()
    arena, tensors, lifeline = make(segment, wire)
    kept = tensors["b"]
    kept[:] = 7
    del arena, tensors
    gc.collect()
    assert segment.has_writers()
    assert not wire.is_closed
    assert (kept == 7).all()
    del kept
    gc.collect()
    assert not segment.is_mapped()
    assert wire.is_closed
    assert os.read(lifeline, 1) == b""  # the lifeline has ended
    os.close(lifeline)


def test_after_the_put_the_lifeline_lasts_as_long_as_the_tensors(segment):
    wire = Wire()
    arena, tensors, lifeline = make(segment, wire)
    with arena.taken():
        arena.make_private()
        arena.give_up()
    assert wire.is_closed
    os.set_blocking(lifeline, False)
    with pytest.raises(BlockingIOError):
        os.read(lifeline, 1)
    del arena, tensors
    gc.collect()
    assert os.read(lifeline, 1) == b""
    assert not segment.is_mapped()
    os.close(lifeline)


def test_another_segment_than_was_asked_for_is_refused(segment):
    wire = Wire()
    with pytest.raises(Corrupt):
        Arena.over((segment.open_writable(),), wire, 1, (), 100)
    assert wire.is_closed
    assert not segment.is_mapped()
