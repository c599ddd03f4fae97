import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samples import MIB, manifest
from tensorcast.schema.chunks import ByteRange
from tensorcast.schema.errors import Corrupt, InvalidArgument
from tensorcast.schema.tensors import (
    ALIGNMENT_BYTES,
    DIMENSIONS_MAX,
    DTYPE_BITS,
    ELEMENTS_MAX,
    NAME_BYTES_MAX,
    SIZE_BYTES_MAX,
    TENSORS_MAX,
    Manifest,
    TensorSpec,
    align,
    check_index,
    check_manifest,
    check_name,
    derive_artifact_id,
    lay_out,
    tensor_bytes,
)

SHAPES = st.lists(st.integers(0, 6), max_size=4).map(tuple)
WHOLE_BYTES = sorted(name for name, bits in DTYPE_BITS.items() if bits % 8 == 0)


def spec(**changes):
    fields = {"name": "w", "dtype": "F32", "shape": (2, 3), "offset": 0}
    return TensorSpec(**{**fields, **changes})


@pytest.mark.parametrize(
    ("dtype", "shape", "size"),
    [
        ("F32", (), 4),
        ("BF16", (3, 5), 30),
        ("BOOL", (7,), 7),
        ("F4", (2, 3), 3),
        ("F6_E2M3", (4,), 3),
        ("C64", (2,), 16),
        ("F32", (0, 5), 0),
        ("F32", (0, ELEMENTS_MAX), 0),
    ],
)
def test_sizes(dtype, shape, size):
    assert tensor_bytes(dtype, shape) == size


@pytest.mark.parametrize(
    ("dtype", "shape", "why"),
    [
        ("F128", (1,), "not known"),
        ("F32", (-1,), "negative or too large"),
        ("F32", (-1, 0), "negative or too large"),
        ("F32", (0, ELEMENTS_MAX + 1), "negative or too large"),
        ("F32", (1,) * (DIMENSIONS_MAX + 1), "dimensions"),
        ("F4", (3,), "does not end at a byte"),
        ("F6_E3M2", (2,), "does not end at a byte"),
    ],
)
def test_no_sizes(dtype, shape, why):
    with pytest.raises(InvalidArgument, match=why):
        tensor_bytes(dtype, shape)


@given(st.integers(0, 1 << 40))
def test_aligned_offsets(offset):
    assert offset <= align(offset) < offset + ALIGNMENT_BYTES
    assert align(offset) % ALIGNMENT_BYTES == 0


@given(st.lists(st.tuples(st.sampled_from(WHOLE_BYTES), SHAPES), max_size=6))
def test_laid_out_tensors_follow_each_other_without_overlap(tensors):
    index, size = lay_out((f"t{i}", dtype, shape) for i, (dtype, shape) in enumerate(tensors))
    end = 0
    for one in index:
        assert one.offset == align(end)
        assert one.extent == ByteRange(one.offset, one.size_bytes)
        end = one.extent.end
    assert size == end


@given(SHAPES, st.data())
def test_the_extent_of_a_strided_tensor(shape, data):
    """Against numpy: the last byte that an element of the view touches."""
    strides = tuple(data.draw(st.integers(0, 9)) for _ in shape)
    extent = spec(shape=shape, strides=strides, offset=8).extent
    if 0 in shape:
        assert extent == ByteRange(8, 0)
        return
    last = max(sum(i * s for i, s in zip(at, strides, strict=True)) for at in np.ndindex(shape))
    assert extent == ByteRange(8, (last + 1) * 4)


def test_tied_tensors_may_share_bytes():
    check_index((spec(name="a"), spec(name="b", shape=(3, 2), strides=(1, 3))), 24)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (spec(shape=(2, 4)), "reaches beyond"),
        (spec(offset=-1), "reaches beyond"),
        (spec(offset=4), "reaches beyond"),
        (spec(strides=(3,)), "do not fit its shape"),
        (spec(strides=(-3, 1)), "do not fit its shape"),
        (spec(strides=(ELEMENTS_MAX + 1, 1)), "do not fit its shape"),
        (spec(strides=(4, 1)), "reaches beyond"),
        (spec(dtype="F4", shape=(2, 2), strides=(2, 1)), "must be contiguous"),
        (spec(shape=(1 << 60,), strides=(0,)), "more elements"),
        (spec(dtype="F33"), "not known"),
        (spec(name=""), "1 to"),
        (spec(name="n" * (NAME_BYTES_MAX + 1)), "1 to"),
        (spec(name="a\0b"), "cannot be the name"),
        (spec(name="__metadata__"), "cannot be the name"),
        (spec(name="\ud800"), "no valid text"),
    ],
)
def test_wrong_tensors(wrong, why):
    with pytest.raises(InvalidArgument, match=why):
        check_index((wrong,), 24)


def test_wrong_indexes():
    with pytest.raises(InvalidArgument, match="same name"):
        check_index((spec(), spec()), 24)
    with pytest.raises(InvalidArgument, match="at most"):
        check_index((spec(),) * (TENSORS_MAX + 1), 24)
    for size in (-1, SIZE_BYTES_MAX + 1):
        with pytest.raises(InvalidArgument, match="not a possible size"):
            check_index((), size)


@pytest.mark.parametrize("name", ["a", "model.layers.0.q", "ü" * 512, "..", "a b"])
def test_names(name):
    check_name(name)


@pytest.mark.parametrize("name", ["a/b", "/", "..\\a"])
def test_names_with_path_separators_are_refused(name):
    with pytest.raises(InvalidArgument, match="path separator"):
        check_name(name)


def test_a_manifest_holds_one_digest_for_each_chunk():
    whole = manifest(3)
    check_manifest(whole)
    assert whole.chunks_total == 3
    assert whole.digest(2) == whole.digests[16:24]
    check_manifest(manifest(0))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"digests": b"short"}, "one digest"),
        ({"chunk_bytes": 2 * MIB}, "chunk size"),
        ({"chunk_bytes": 0}, "chunk size"),
        ({"size_bytes": MIB}, "reaches beyond"),
        ({"size_bytes": 4 * MIB}, "one digest"),
    ],
)
def test_wrong_manifests(change, why):
    with pytest.raises((Corrupt, InvalidArgument), match=why):
        check_manifest(msgspec.structs.replace(manifest(3), **change))


def test_the_identity_of_content_never_changes():
    """A golden value: the same bytes must have the same id in every release."""
    index, size = lay_out([("a", "F32", (2, 3)), ("b", "BF16", ())])
    assert size == 66
    assert (
        derive_artifact_id(index, size, [bytes(range(32))])
        == "c82645d689ae4ac53441ae9d5acac4dcd1fa9d9b"
    )


def test_every_part_of_the_content_counts():
    index, size = lay_out([("a", "F32", (2, 3)), ("b", "BF16", ())])
    digests = [bytes(32), bytes(32)]
    ids = {
        derive_artifact_id(index, size, digests),
        derive_artifact_id(index[:1], size, digests),
        derive_artifact_id(index[::-1], size, digests),
        derive_artifact_id(index, size + 1, digests),
        derive_artifact_id(index, size, digests[:1]),
        derive_artifact_id(index, size, [bytes(32), bytes(31) + b"\1"]),
        derive_artifact_id((index[0], spec(name="b", dtype="F16", shape=(), offset=64)), size, []),
    }
    assert len(ids) == 7
    assert all(len(i) == 40 for i in ids)


def test_a_manifest_survives_the_wire():
    whole = manifest(3)
    assert msgspec.json.decode(msgspec.json.encode(whole), type=Manifest) == whole
