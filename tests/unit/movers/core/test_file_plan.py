import pytest

from conformance.contents import odd_index
from tensorcast.movers.core.file_plan import contiguous_bytes, find_regions, plan_file
from tensorcast.schema.chunks import ByteRange
from tensorcast.schema.safetensors import METADATA, PREFIX_BYTES, parse_header
from tensorcast.schema.tensors import TensorSpec, check_index


def spec(name, offset, shape, dtype="U8", strides=None):
    return TensorSpec(name=name, dtype=dtype, shape=shape, offset=offset, strides=strides)


def parse(plan):
    """The plan's own head, read as any reader would."""
    return parse_header(plan.head[PREFIX_BYTES:], plan.file_bytes, "f")


def places(plan):
    return {t.name: (t.place.offset - len(plan.head), t.place.size) for t in parse(plan).tensors}


def test_contiguous_tensors_follow_each_other_without_gaps():
    index, size = odd_index()
    plan = plan_file(index, size)
    header = parse(plan)
    assert len(plan.head) % 4096 == 0
    assert {t.name: (t.dtype, t.shape) for t in header.tensors} == {
        s.name: (s.dtype, s.shape) for s in index
    }
    assert plan.file_bytes == len(plan.head) + sum(s.size_bytes for s in index)
    assert header.metadata == {"format": "pt"}
    assert plan.copies == ()


def test_tied_tensors_are_stored_once_and_named():
    index = (spec("head", 0, (64,)), spec("embed", 0, (64,)), spec("flat", 64, (4,)))
    plan = plan_file(index, 68)
    assert places(plan) == {"head": (0, 64), "flat": (64, 4)}
    assert parse(plan).metadata == {"embed": "head", "format": "pt"}


def test_a_tensor_named_format_does_not_break_the_metadata():
    index = (spec("a", 0, (64,)), spec("format", 0, (64,)))
    plan = plan_file(index, 64)
    assert parse(plan).metadata == {"format": "pt"}
    assert places(plan) == {"a": (0, 64), "format": (64, 64)}


def test_another_view_of_the_same_bytes_is_stored_as_a_copy():
    index = (spec("a", 0, (8, 8)), spec("flat", 0, (64,)), spec("as_f32", 0, (16,), "F32"))
    plan = plan_file(index, 64)
    assert places(plan) == {"a": (0, 64), "flat": (64, 64), "as_f32": (128, 64)}
    assert plan.layout.parts == ((0, 64, len(plan.head)),)


def test_slices_and_strides_lie_behind_the_region_they_view():
    index = (
        spec("base", 64, (4, 6)),
        spec("row", 70, (6,)),
        spec("turned", 64, (6, 4), strides=(1, 6)),
        spec("next", 128, (5,)),
    )
    plan = plan_file(index, 133)
    assert places(plan) == {"base": (0, 24), "next": (24, 5), "turned": (29, 24), "row": (53, 6)}
    assert plan.layout.parts == ((64, 24, len(plan.head)), (128, 5, len(plan.head) + 24))


def test_a_region_that_no_tensor_covers_has_a_name_of_its_own():
    index = (
        spec("left", 0, (10,)),
        spec("right", 5, (10,)),
        spec("__tensorcast_region_0__", 64, (3,)),
    )
    plan = plan_file(index, 67)
    assert places(plan) == {
        "__tensorcast_region_0___": (0, 15),
        "__tensorcast_region_0__": (15, 3),
        "left": (18, 10),
        "right": (28, 10),
    }


def test_a_tensor_that_the_format_cannot_name_is_kept_as_a_region():
    plan = plan_file((spec(METADATA, 0, (10,)),), 10)
    assert places(plan) == {"__tensorcast_region_0__": (0, 10)}


@pytest.mark.parametrize(
    "index", [(), (spec("none", 0, (0,)), spec("turned", 0, (0, 3), "F32", (1, 5)))]
)
def test_nothing_to_store_is_a_file_too(index):
    plan = plan_file(index, 0)
    assert plan.layout.parts == ()
    assert plan.file_bytes == len(plan.head)
    assert {t.name for t in parse(plan).tensors} >= {s.name for s in index}


def test_regions_are_maximal():
    index = (spec("c", 30, (5,)), spec("a", 0, (20,)), spec("b", 19, (5,)), spec("n", 3, (0,)))
    assert [r.place for r in find_regions(index)] == [
        ByteRange(3, 0),
        ByteRange(0, 24),
        ByteRange(30, 5),
    ]


SPACE = bytes(range(240))


@pytest.mark.parametrize(
    ("tensor", "wanted"),
    [
        (spec("plain", 8, (4,)), bytes([8, 9, 10, 11])),
        (spec("turned", 0, (2, 3), strides=(1, 2)), bytes([0, 2, 4, 1, 3, 5])),
        (spec("expanded", 4, (2, 3), strides=(1, 0)), bytes([4, 4, 4, 5, 5, 5])),
        (spec("words", 4, (2, 2), "I16", (1, 4)), bytes([4, 5, 12, 13, 6, 7, 14, 15])),
        (spec("deep", 0, (2, 1, 2), strides=(10, 7, 3)), bytes([0, 3, 10, 13])),
        (spec("scalar", 9, (), strides=()), bytes([9])),
        (spec("none", 9, (0, 2), strides=(5, 5)), b""),
        (spec("eights", 0, (2,), "C64", (2,)), SPACE[:8] + SPACE[16:24]),
    ],
)
def test_elements_come_in_row_major_order(tensor, wanted):
    check_index((tensor,), len(SPACE))
    assert b"".join(contiguous_bytes(tensor, memoryview(SPACE))) == wanted
