from hypothesis import given
from hypothesis import strategies as st

from tensorcast.movers.core.layout import Layout, Piece, gaps
from tensorcast.schema.chunks import ByteRange
from tensorcast.schema.tensors import TensorSpec

SPARSE = Layout(size_bytes=100, parts=((10, 20, 1000), (30, 10, 2000), (60, 5, 3000)))


def test_a_segment_is_one_piece():
    assert list(Layout.whole(100, 7).locate(ByteRange(10, 20))) == [Piece(17, 20)]
    assert list(Layout.whole(0).locate(ByteRange(0, 0))) == []


def test_what_is_not_stored_is_zeros():
    assert list(SPARSE.locate(ByteRange(0, 100))) == [
        Piece(None, 10),
        Piece(1000, 20),
        Piece(2000, 10),
        Piece(None, 20),
        Piece(3000, 5),
        Piece(None, 35),
    ]


def test_a_range_may_begin_and_end_inside_parts():
    assert list(SPARSE.locate(ByteRange(25, 10))) == [Piece(1015, 5), Piece(2000, 5)]
    assert list(SPARSE.locate(ByteRange(40, 20))) == [Piece(None, 20)]
    assert list(SPARSE.locate(ByteRange(62, 1))) == [Piece(3002, 1)]


@st.composite
def layouts(draw):
    parts, at, position = [], 0, 0
    for _ in range(draw(st.integers(0, 6))):
        at += draw(st.integers(0, 5))
        size = draw(st.integers(1, 9))
        position += draw(st.integers(0, 3))
        parts.append((at, size, position))
        at += size
        position += size
    return Layout(size_bytes=at + draw(st.integers(0, 5)), parts=tuple(parts))


@given(layouts(), st.data())
def test_pieces_rebuild_the_space(layout, data):
    stored = bytes(n % 255 + 1 for n in range(200))
    space = bytearray(layout.size_bytes)
    for offset, size, position in layout.parts:
        space[offset : offset + size] = stored[position : position + size]
    start = data.draw(st.integers(0, layout.size_bytes))
    size = data.draw(st.integers(0, layout.size_bytes - start))
    read = b"".join(
        bytes(p.size) if p.position is None else stored[p.position : p.position + p.size]
        for p in layout.locate(ByteRange(start, size))
    )
    assert read == space[start : start + size]


def tensor(offset, size, **more):
    return TensorSpec(name=f"t{offset}", dtype="U8", shape=(size,), offset=offset, **more)


def test_gaps_lie_between_and_behind_tensors():
    index = (tensor(64, 10), tensor(0, 3), tensor(70, 20), tensor(20, 0))
    assert gaps(index, 128) == (ByteRange(3, 17), ByteRange(20, 44), ByteRange(90, 38))
    assert gaps((), 5) == (ByteRange(0, 5),)
    assert gaps((tensor(0, 5),), 5) == ()
