import json
import struct
import tracemalloc
from contextlib import suppress

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from tensorcast.schema.chunks import ByteRange
from tensorcast.schema.errors import Corrupt, InvalidArgument
from tensorcast.schema.safetensors import (
    BRACKETS_MAX,
    HEADER_BYTES_MAX,
    PREFIX_BYTES,
    header_bytes,
    parse_header,
    write_header,
)
from tensorcast.schema.tensors import DIMENSIONS_MAX, DTYPE_BITS, TENSORS_MAX, tensor_bytes

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(
    lambda name: not set("\0/\\") & set(name) and name != "__metadata__"
)
WHOLE_BYTES = sorted(name for name, bits in DTYPE_BITS.items() if bits % 8 == 0)
TENSORS = st.lists(
    st.tuples(
        NAMES,
        st.sampled_from(WHOLE_BYTES),
        st.lists(st.integers(0, 5), max_size=3).map(tuple),
    ),
    max_size=6,
    unique_by=lambda tensor: tensor[0],
)
METADATA = st.dictionaries(NAMES, NAMES, max_size=3)
F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def read(data, name="m.safetensors"):
    """The header of a whole file."""
    length = header_bytes(data[:PREFIX_BYTES], len(data), name)
    return parse_header(data[PREFIX_BYTES : PREFIX_BYTES + length], len(data), name)


def file_of(table, size):
    text = table if isinstance(table, bytes) else json.dumps(table).encode()
    return struct.pack("<Q", len(text)) + text + bytes(size)


@given(TENSORS, METADATA)
def test_what_is_written_can_be_read(tensors, metadata):
    head = write_header(tensors, metadata)
    size = sum(tensor_bytes(dtype, shape) for _, dtype, shape in tensors)
    header = read(head + bytes(size))
    assert header.metadata == metadata
    found = {(t.name, t.dtype, t.shape) for t in header.tensors}
    assert found == set(tensors)
    assert len(head) % 8 == 0
    assert sum(t.place.size for t in header.tensors) == size


@given(TENSORS, METADATA)
def test_the_format_s_own_reader_reads_what_is_written(tensors, metadata):
    known = [t for t in tensors if t[1] in ("F32", "U8", "I64", "F16", "BOOL")]
    size = sum(tensor_bytes(dtype, shape) for _, dtype, shape in known)
    loaded = safetensors.numpy.load(write_header(known, metadata) + bytes(size))
    assert {name: array.shape for name, array in loaded.items()} == {t[0]: t[2] for t in known}


def test_what_the_format_s_own_writer_writes_can_be_read():
    arrays = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.zeros((), np.int64)}
    data = safetensors.numpy.save(arrays, metadata={"format": "pt"})
    header = read(data)
    assert header.metadata == {"format": "pt"}
    assert {t.name: (t.dtype, t.shape) for t in header.tensors} == {
        "b": ("F32", (2, 3)),
        "a": ("I64", ()),
    }
    (b,) = (t for t in header.tensors if t.name == "b")
    assert data[b.place.offset : b.place.end] == arrays["b"].tobytes()


def test_every_dtype_of_the_format_is_known():
    with pytest.raises(safetensors.SafetensorError) as caught:
        safetensors.deserialize(file_of({"a": {**F32, "dtype": "NONE"}}, 8))
    for name in DTYPE_BITS:
        assert f"`{name}`" in str(caught.value), name
    assert str(caught.value).count("`") == 2 * (len(DTYPE_BITS) + 1)


def test_tensors_come_in_the_order_of_their_bytes():
    table = {
        "z": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},
        "a": {"dtype": "U8", "shape": [2], "data_offsets": [3, 5]},
    }
    header = read(file_of(table, 5))
    start = PREFIX_BYTES + len(json.dumps(table))
    assert [t.name for t in header.tensors] == ["z", "a"]
    assert header.tensors[1].place == ByteRange(start + 3, 2)


@pytest.mark.parametrize(
    ("prefix", "size"),
    [
        (b"", 0),
        (b"1234567", 7),
        (struct.pack("<Q", 93), 100),
        (struct.pack("<Q", HEADER_BYTES_MAX + 1), 1 << 40),
        (struct.pack("<Q", (1 << 64) - 1), 100),
        (b"PK\3\4\0\0\0\0", 100),
    ],
)
def test_lengths_that_cannot_be(prefix, size):
    with pytest.raises(Corrupt, match=r"^m\.safetensors"):
        header_bytes(prefix, size, "m.safetensors")


def test_the_longest_header_that_fits():
    assert header_bytes(struct.pack("<Q", 92), 100, "m") == 92


HOSTILE = [
    (b"", "not valid"),
    (b"{", "not valid"),
    (b"\xff\xfe", "not valid"),
    (b"[]", "not valid"),
    (b"7", "not valid"),
    (b"[" * 100_000, "nested too deeply"),
    (b"9" * 5000, "not valid"),
    ({"a": 7}, "not valid"),
    ({"a": {}}, "not valid"),
    ({"a": {**F32, "shape": "22"}}, "not valid"),
    ({"a": {**F32, "shape": [True, 2]}}, "not valid"),
    ({"a": {**F32, "shape": [2.0]}}, "not valid"),
    ({"a": {**F32, "extra": 1}}, "not valid"),
    ({"a": {**F32, "data_offsets": [0, 8, 16]}}, "not valid"),
    ({"__metadata__": {"a": 1}, "a": F32}, "not valid"),
    ({"__metadata__": [], "a": F32}, "not valid"),
    ({"__metadata__": {"a": "\ud800"}, "a": F32}, "not valid"),
    ({"a": {**F32, "dtype": "F99"}}, "not known"),
    ({"a": {**F32, "shape": [-2]}}, "negative"),
    ({"a": {**F32, "shape": [1 << 70, 0]}}, "too large"),
    ({"a": {**F32, "shape": [2] + [1] * DIMENSIONS_MAX}}, "dimensions"),
    ({"a": {**F32, "shape": [3]}}, "takes 12"),
    ({"a": {**F32, "shape": [1 << 62, 1 << 62]}}, "takes"),
    ({"a": {**F32, "data_offsets": [8, 0]}}, "takes 8"),
    ({"a": {**F32, "data_offsets": [-8, 0]}}, "takes 8"),
    ({"a": {**F32, "data_offsets": [1 << 80, (1 << 80) + 8]}}, "leaves a gap"),
    ({"a": {**F32, "data_offsets": [8, 16]}}, "leaves a gap"),
    ({"a": F32, "b": F32}, "overlaps"),
    ({}, "should have"),
    ({"a": {**F32, "shape": [1], "data_offsets": [0, 4]}}, "should have"),
    ({"": F32}, "1 to"),
    ({"n" * 2000: F32}, "1 to"),
    ({"a\0": F32}, "cannot be the name"),
    ({"\ud800": F32}, "no valid text"),
    (b'{"a":%s,"a":%s}' % ((json.dumps(F32).encode(),) * 2), "twice"),
    (b'{"a":{"dtype":"F32","dtype":"U8","shape":[2],"data_offsets":[0,8]}}', "twice"),
    (b'{"__metadata__":{"k":"1","k":"2"}}', "twice"),
    (b'{"a":%s}' % (b"[" * (BRACKETS_MAX + 1)), "more than"),
]


@pytest.mark.parametrize(("table", "why"), HOSTILE)
def test_hostile_headers(table, why):
    with pytest.raises(Corrupt, match=why) as caught:
        read(file_of(table, 8))
    str(caught.value).encode()  # it can be printed


def test_too_many_tensors():
    table = {str(i): {**F32, "shape": [0], "data_offsets": [0, 0]} for i in range(TENSORS_MAX + 1)}
    with pytest.raises(Corrupt, match="more than"):
        read(file_of(table, 0))


def test_a_long_shape_is_refused_before_it_is_multiplied():
    """The product of a million numbers takes minutes; the test has seconds."""
    shape = b"[" + b"999999999999999999," * 1_000_000 + b"0]"
    with pytest.raises(Corrupt, match="dimensions"):
        read(file_of(b'{"a":{"dtype":"U8","shape":%s,"data_offsets":[0,0]}}' % shape, 0))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)
NEARLY = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from([*DTYPE_BITS, "F1"]) | JSON,
        "shape": st.lists(st.integers(-1, 5), max_size=3) | JSON,
        "data_offsets": st.tuples(st.integers(-1, 40), st.integers(-1, 40)) | JSON,
    },
)


@given(st.dictionaries(st.text(max_size=4), NEARLY | JSON, max_size=4), st.integers(0, 64))
def test_any_json_is_a_header_or_corrupt(table, size):
    data = file_of(table, size)
    try:
        header = read(data)
    except Corrupt:
        return
    assert sum(t.place.size for t in header.tensors) == size


@given(st.binary(max_size=100))
def test_any_bytes_are_a_file_or_corrupt(data):
    with suppress(Corrupt):
        assert read(data)


@given(TENSORS.filter(bool), st.data())
def test_a_flipped_bit_never_does_more_than_corrupt(tensors, data):
    size = sum(tensor_bytes(dtype, shape) for _, dtype, shape in tensors)
    whole = bytearray(write_header(tensors, {}) + bytes(size))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= 1 << data.draw(st.integers(0, 7))
    with suppress(Corrupt):
        read(bytes(whole))


def test_no_claim_of_a_header_is_allocated():
    tracemalloc.start()
    for table, _ in HOSTILE[:-1]:
        with pytest.raises(Corrupt):
            read(file_of(table, 8))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 << 20


@pytest.mark.parametrize(
    ("tensors", "why"),
    [
        ([("__metadata__", "F32", (2,))], "cannot be the name"),
        ([("", "F32", (2,))], "1 to"),
        ([("a", "F4", (3,))], "does not end"),
        ([("a", "F32", ()), ("a", "F32", ())], "Two tensors"),
    ],
)
def test_tensors_that_the_format_cannot_hold(tensors, why):
    with pytest.raises(InvalidArgument, match=why):
        write_header(tensors, {"format": "pt"})
