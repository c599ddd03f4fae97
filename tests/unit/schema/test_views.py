from math import prod

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorcast.schema.errors import InvalidArgument, NotFound
from tensorcast.schema.tensors import DTYPE_BITS, TensorSpec, lay_out
from tensorcast.schema.views import Selected, Slice, View, byte_ranges, resolve

INDEX, _ = lay_out(
    [
        ("embed.weight", "F32", (8, 6)),
        ("layers.0.q.weight", "BF16", (4, 6)),
        ("layers.0.q.bias", "BF16", (4,)),
        ("layers.1.q.weight", "BF16", (4, 6)),
        ("packed", "F4", (4, 2)),
        ("scale", "F32", ()),
    ]
)


def names(view):
    return [selected.spec.name for selected in resolve(view, INDEX)]


def test_an_empty_view_is_the_whole_artifact():
    assert [s.spec for s in resolve(View(), INDEX)] == list(INDEX)
    assert all(s.part is None and s.shape == s.spec.shape for s in resolve(View(), INDEX))


def test_names_are_patterns_for_the_whole_name_in_the_order_of_the_index():
    assert names(View.tensors(r"layers\.\d\.q\.weight", "scale", "scale")) == [
        "layers.0.q.weight",
        "layers.1.q.weight",
        "scale",
    ]
    with pytest.raises(NotFound, match="No tensor is named 'layers'"):
        resolve(View.tensors("scale", "layers"), INDEX)


def test_a_slice_cuts_the_tensors_that_match():
    cut, whole = resolve(View.slice("layers.*", dim=1, start=2, length=3), INDEX[1:2] + INDEX[5:])
    assert (cut.shape, cut.part) == ((4, 3), Slice(1, 2, 3))
    assert whole.part is None


def test_the_shards_of_all_ranks_make_the_whole():
    rules = {r".*\.q\.weight": 1, r"embed.*": 0}
    shards = [resolve(View.shard(rank=r, world=2, rules=rules), INDEX) for r in range(2)]
    assert [s.shape for s in shards[0]] == [(4, 6), (4, 3), (4,), (4, 3), (4, 2), ()]
    for one, other in zip(*shards, strict=True):
        if one.part and other.part:
            assert one.part.start + one.part.length == other.part.start


def test_slices_come_before_rules_and_the_first_rule_counts():
    view = View(slices=(("embed.*", Slice(1, 0, 1)),), rules=((".*weight", 0), (".*", 1)), world=4)
    assert [s.part for s in resolve(view, INDEX[:2])] == [Slice(1, 0, 1), Slice(0, 0, 1)]


@pytest.mark.parametrize(
    ("view", "why"),
    [
        (View.slice("embed.*", dim=2, start=0, length=1), "are not in"),
        (View.slice("embed.*", dim=-1, start=0, length=1), "are not in"),
        (View.slice("embed.*", dim=0, start=-1, length=1), "are not in"),
        (View.slice("embed.*", dim=0, start=0, length=-1), "are not in"),
        (View.slice("embed.*", dim=0, start=8, length=1), "are not in"),
        (View.slice("packed", dim=0, start=0, length=2), "sub-byte"),
        (View.shard(rank=0, world=3, rules={"embed.*": 0}), "do not divide"),
        (View.shard(rank=0, world=2, rules={"scale": 0}), "no dimension 0"),
        (View.shard(rank=0, world=2, rules={"embed.*": -1}), "no dimension -1"),
        (View.tensors("("), "no regular expression"),
        (View.tensors("a{99999999999}"), "no regular expression"),
        (View.tensors("(" * 5000 + ")" * 5000), "no regular expression"),
    ],
)
def test_cuts_that_do_not_fit(view, why):
    with pytest.raises(InvalidArgument, match=why):
        resolve(view, INDEX)


@pytest.mark.parametrize(("rank", "world"), [(2, 2), (-1, 2), (0, 0)])
def test_a_rank_is_one_of_its_world(rank, world):
    with pytest.raises(InvalidArgument, match="Ranks count from 0"):
        View.shard(rank=rank, world=world, rules={})
    with pytest.raises(InvalidArgument, match="Ranks count from 0"):
        msgspec.json.decode(f'{{"rank":{rank},"world":{world}}}', type=View)


@given(st.data())
def test_byte_ranges_are_what_numpy_slices(data):
    dtype = data.draw(st.sampled_from(["U8", "BF16", "F32", "F64"]))
    shape = tuple(data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=4)))
    dim = data.draw(st.integers(0, len(shape) - 1))
    start = data.draw(st.integers(0, shape[dim]))
    part = Slice(dim, start, data.draw(st.integers(0, shape[dim] - start)))
    spec = TensorSpec(name="w", dtype=dtype, shape=shape, offset=64)
    ranges = byte_ranges(Selected(spec, part))

    width = DTYPE_BITS[dtype] // 8
    places = 64 + np.arange(prod(shape) * width).reshape((*shape, width))
    cut = (slice(None),) * dim + (slice(part.start, part.start + part.length),)
    assert [b for r in ranges for b in range(r.offset, r.end)] == list(places[cut].ravel())
    assert all(r.size > 0 for r in ranges)


def test_a_whole_tensor_is_one_range():
    (selected,) = resolve(View.tensors("embed.weight"), INDEX)
    (place,) = byte_ranges(selected)
    assert (place.offset, place.size) == (0, 192)
    (whole,) = resolve(View.slice("embed.weight", dim=1, start=0, length=6), INDEX[:1])
    assert byte_ranges(whole) == (place,)


def test_an_empty_tensor_has_no_range():
    spec = TensorSpec(name="w", dtype="F32", shape=(0, 3), offset=0)
    assert byte_ranges(Selected(spec)) == ()
    assert byte_ranges(Selected(spec, Slice(1, 0, 3))) == ()


def test_a_strided_tensor_gives_its_whole_extent():
    spec = TensorSpec(name="w", dtype="F32", shape=(2, 3), offset=8, strides=(1, 2))
    assert byte_ranges(Selected(spec, Slice(0, 0, 1))) == (spec.extent,)


@given(st.integers(1, 6), st.integers(1, 4))
def test_a_view_survives_the_wire(world, rules):
    view = View.shard(rank=world - 1, world=world, rules={f"p{i}": i for i in range(rules)})
    assert msgspec.json.decode(msgspec.json.encode(view), type=View) == view
