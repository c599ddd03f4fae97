"""Where loaded tensors go in memory, and which bytes of files are read for them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorcast.client.load_plan import index_of, is_mappable, plan_load, select
from tensorcast.schema.chunks import ByteRange
from tensorcast.schema.errors import NotFound
from tensorcast.schema.safetensors import FileTensor, Header
from tensorcast.schema.views import View

SHAPES = ((4, 6), (8, 2), (0, 3), (), (2, 2, 4))


def header(names: str, start: int, dtype: str = "I16") -> Header:
    """A file whose tensors have SHAPES in turn, from position `start` on."""
    tensors = []
    for number, name in enumerate(names):
        shape = SHAPES[number % len(SHAPES)]
        size = 2
        for length in shape:
            size *= length
        place = ByteRange(start, size)
        tensors.append(FileTensor(name=name, dtype=dtype, shape=shape, place=place))
        start += size
    return Header(tensors=tuple(tensors), metadata={})


HEADERS = [header("abcde", 1000), header("fgh", 88)]


def test_a_whole_file_is_one_run_aligned_as_the_file_is():
    plan = plan_load(select(View(), HEADERS[:1]))
    assert [spec.name for spec in plan.specs] == list("abcde")
    assert {span.target - span.position for span in plan.spans[0]} == {0}
    assert plan.size_bytes == HEADERS[0].tensors[-1].place.end


def test_only_what_a_view_needs_is_read():
    plan = plan_load(select(View.tensors("b", "g"), HEADERS))
    assert [sum(span.size for span in spans) for spans in plan.spans] == [32, 32]
    assert [spec.name for spec in plan.specs] == ["b", "g"]


def test_rows_are_packed():
    view = View.shard(rank=1, world=2, rules={"a": 1})
    plan = plan_load(select(View(names=("a",), **fields(view)), HEADERS))
    assert plan.specs[0].shape == (4, 3)
    spans = plan.spans[0]
    assert [span.size for span in spans] == [6, 6, 6, 6]
    assert [span.position for span in spans] == [1006, 1018, 1030, 1042]
    assert [span.target - spans[0].target for span in spans] == [0, 6, 12, 18]


def fields(view: View) -> dict[str, object]:
    return {"rank": view.rank, "world": view.world, "rules": view.rules}


def test_nothing_matches():
    with pytest.raises(NotFound, match="No tensor is named 'z'"):
        select(View.tensors("z"), HEADERS)


def test_rows_and_odd_places_cannot_be_mapped():
    assert is_mappable(select(View(), HEADERS))
    assert is_mappable(select(View.slice("a", dim=0, start=1, length=2), HEADERS))
    assert not is_mappable(select(View.slice("a", dim=1, start=1, length=2), HEADERS))
    assert not is_mappable(select(View(), [header("ab", 1001)]))


@given(st.sets(st.sampled_from("abcdefgh"), min_size=1), st.integers(0, 3))
def test_tensors_do_not_overlap_in_memory(names, odd):
    headers = [header("abcde", 1000 + odd), header("fgh", 88)]
    plan = plan_load(select(View.tensors(*sorted(names)), headers))
    specs = {spec.name: spec for spec in plan.specs}
    assert specs.keys() == names
    ends = sorted((spec.offset, spec.offset + spec.size_bytes) for spec in plan.specs)
    filled = [pair for pair in ends if pair[0] < pair[1]]
    assert all(before[1] <= after[0] for before, after in pairwise(filled))
    assert all(end <= plan.size_bytes for _, end in filled)
    assert all(spec.offset % 2 == 0 for spec in plan.specs)


def test_the_index_of_a_file_counts_from_its_start():
    assert [spec.offset for spec in index_of(HEADERS[1])] == [88, 136, 168]
